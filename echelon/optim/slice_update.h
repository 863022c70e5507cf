// The owner's part of a step: from the gradients of what it owns of the flat buffer to its new
// values, entirely on the device. Whoever owns something has one: all of it (one process, data
// parallel), a server's range, a rank's slices of every unit (ZeRO).
//
//   is everything finite? -> clip by the norm of all gradients -> optimiser on the master values
//
// Masters are fp32 (fp64 for fp64 models); gradients that are narrower are widened piece by piece,
// so the extra memory is one piece. Once a loss or a gradient is not finite, this and every later
// update leaves values and state as they are: the weights stay those of the last good step however
// late the host looks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/nn/flat_unit.h"
#include "echelon/optim/optimizer.h"

namespace echelon {

class SliceUpdate {
 public:
  // A contiguous range of the flat buffer that is owned.
  struct Part {
    at::Tensor master;                // its values in the wide type, which updates change
    std::vector<UpdateRange> ranges;  // counted from its beginning
  };

  // `type` is that of the gradients.
  // Where others own the rest and the optimiser looks at whole parameters, `sum_over_owners` sums a
  // tensor over all of them, in place; `parameters` is how many there are.
  SliceUpdate(std::vector<Part> parts, at::ScalarType type, const OptimOptions& options,
              int parameters = 0, std::function<void(at::Tensor)> sum_over_owners = {});

  // The learning rate of the next update, a scalar on the device: the caller writes it.
  const at::Tensor& rate() const { return scalars_.rate; }

  // The norm of the gradients, by part; a scalar of the wide type. Those of several owners are
  // summed as squares.
  at::Tensor norm_of(const std::vector<at::Tensor>& grads) const;

  // One update. `norm` is that of all gradients, `loss` a scalar on the device. May overwrite the
  // gradients.
  void apply(const std::vector<at::Tensor>& grads, const at::Tensor& norm, const at::Tensor& loss);

  const at::Tensor& halted() const { return scalars_.skip; }  // 1 once anything was not finite
  // What is kept of every element: "master", "exp_avg", ...; by part.
  struct PartedState {
    std::string name;
    std::vector<at::Tensor> parts;
  };
  std::vector<PartedState> parted_state() const;

  // The same where there is one part.
  const at::Tensor& master() const { return parts_.front().master; }
  struct State {
    std::string name;
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
  std::vector<Part> parts_;
  std::vector<at::Tensor> moments_;  // by state name: those of all parts, one after another
  at::Tensor wide_grad_;             // one piece, where gradients are narrower than masters
  StepScalars scalars_;
  std::function<void(at::Tensor)> sum_over_owners_;

  // fn(slice) for every range, with its gradient in the wide type.
  template <class Fn>
  void each_slice(const std::vector<at::Tensor>& grads, const Fn& fn);
};

// The type of masters for a model of this type.
at::ScalarType master_type(at::ScalarType type);

// The grain at which an optimiser updates.
Grain grain_of(const OptimOptions& options);

// What is updated alike within [begin, end), counted from `begin`, none longer than a gradient of
// this type is widened at a time.
std::vector<UpdateRange> ranges_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                       std::int64_t end, at::ScalarType type,
                                       Grain grain = Grain::decay_group);
int parameters_of(const std::vector<FlatUnit>& units);  // the trainable ones

}  // namespace echelon
