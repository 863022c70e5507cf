// The owner's part of a step: from the gradients of a range of the flat buffer to its new values,
// entirely on the device. Whoever owns a range has one: all of it (one process, data parallel), a
// server's slice.
//
//   is everything finite? -> clip by the norm of all gradients -> optimiser on the master values
//
// Masters are fp32 (fp64 for fp64 models); gradients that are narrower are widened piece by piece,
// so the extra memory is one piece. Once a loss or a gradient is not finite, this and every later
// update leaves values and state as they are: the weights stay those of the last good step however
// late the host looks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "echelon/nn/flat_unit.h"
#include "echelon/optim/optimizer.h"

namespace echelon {

class SliceUpdate {
 public:
  // `master`: the values of the range, in the wide type, which updates change. `ranges` are of the
  // range, which begins at 0. `type` is that of the gradients.
  SliceUpdate(at::Tensor master, std::vector<DecayRange> ranges, at::ScalarType type,
              const OptimOptions& options);

  // The learning rate of the next update, a scalar on the device: the caller writes it.
  const at::Tensor& rate() const { return scalars_.rate; }

  // The norm of a range's gradients, a scalar of the wide type. Those of several owners are summed
  // as squares.
  at::Tensor norm_of(const at::Tensor& grads) const;

  // One update. `norm` is that of all gradients, `loss` a scalar on the device. May overwrite the
  // gradients.
  void apply(at::Tensor grads, const at::Tensor& norm, const at::Tensor& loss);

  const at::Tensor& halted() const { return scalars_.skip; }  // 1 once anything was not finite
  const at::Tensor& master() const { return master_; }
  struct State {
    std::string name;  // "master", "exp_avg", ...
    at::Tensor flat;
  };
  std::vector<State> state() const;
  double updates() const;
  // Goes on after so many updates; forgets that anything was not finite.
  void restart(double updates);

 private:
  OptimOptions options_;
  std::unique_ptr<Optimizer> optimizer_;
  bool narrow_, single_;  // gradients are narrower than masters; the model is not fp64
  at::Tensor master_;
  std::vector<at::Tensor> moments_;  // by state name
  std::vector<DecayRange> ranges_;
  at::Tensor wide_grad_;  // one piece, where gradients are narrower than masters
  StepScalars scalars_;
};

// The type of masters for a model of this type.
at::ScalarType master_type(at::ScalarType type);

// Those of `ranges` within [begin, end), counted from `begin`, none longer than a gradient of this
// type is widened at a time.
std::vector<DecayRange> ranges_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                      std::int64_t end, at::ScalarType type);

}  // namespace echelon
