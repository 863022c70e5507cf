// The owner's part of a step: from the gradients of what it owns of the flat buffer to its new
// values, entirely on the device. Whoever owns something has one: all of it (one process, data
// parallel), a server's range, a rank's slices of every unit (ZeRO).
//
//   is everything finite? -> clip by the norm of all gradients -> optimiser on the master values
//
// Masters are fp32 (fp64 for fp64 models); gradients that are narrower are widened piece by piece,
// so the extra memory is one piece. Once a loss or a gradient is not finite, this and every later
// update leaves values and state as they are: the weights stay those of the last good step however
// late the host looks. With a loss scale a gradient that is not finite only skips its own step,
// until the scale is exhausted.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/nn/flat_unit.h"
#include "echelon/optim/loss_scale.h"
#include "echelon/optim/optimizer.h"

namespace echelon {

class SliceUpdate {
 public:
  // A contiguous range of the flat buffer that is owned.
  struct Part {
    at::Tensor master;                // its values in the wide type, which updates change
    std::vector<UpdateRange> ranges;  // counted from its beginning
  };

  // `type` is that of the gradients; `device` where masters and gradients lie. There may be no part
  // at all: on a rank of a pipeline whose layers have no parameters.
  // Where others own the rest and the optimiser looks at whole parameters, `sum_over_owners` sums a
  // tensor over all of them, in place; `parameters` is how many there are. With `scaling` the
  // gradients carry a loss scale.
  SliceUpdate(std::vector<Part> parts, at::Device device, at::ScalarType type,
              const OptimOptions& options, int parameters = 0,
              std::function<void(at::Tensor)> sum_over_owners = {},
              const std::optional<LossScale::Setup>& scaling = {});

  // The same where masters and state are not in memory: `walk` shows them run by run, all of them
  // in the order of parts, each with its gradient, on the CPU. `ranges`: those of each part.
  struct Run {
    std::size_t part = 0;
    std::int64_t begin = 0;  // within the part
    at::Tensor master, grad;
    std::vector<at::Tensor> state;  // in the order of Optimizer::state_names
  };
  // `values_change`: this time the masters are changed, not the state alone.
  using Walk =
      std::function<void(bool values_change, const std::function<void(const Run&)>& visit)>;
  SliceUpdate(std::vector<std::vector<UpdateRange>> ranges, std::int64_t longest_run, Walk walk,
              at::ScalarType type, const OptimOptions& options, int parameters,
              std::function<void(at::Tensor)> sum_over_owners,
              const std::optional<LossScale::Setup>& scaling = {});

  // The learning rate of the next update, a scalar on the device: the caller writes it.
  const at::Tensor& rate() const { return scalars_.rate; }

  // A norm of gradients without the loss scale that they carry.
  at::Tensor without_scale(const at::Tensor& norm) const;

  // One update. `norm` is that of all gradients, without the loss scale; `loss` a scalar on the
  // device. May overwrite the gradients, which are empty where a walk shows them.
  void apply(const std::vector<at::Tensor>& grads, const at::Tensor& norm, const at::Tensor& loss);

  const at::Tensor& skipped() const { return scalars_.skip; }  // 1: the last update did nothing
  const at::Tensor& halted() const { return halted_; }  // 1 once nothing will be updated any more
  LossScale* loss_scale() { return loss_scale_ ? &*loss_scale_ : nullptr; }

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
  void prepare(std::int64_t longest, int parameters, at::TensorOptions wide,
               const std::optional<LossScale::Setup>& scaling);

  OptimOptions options_;
  std::unique_ptr<Optimizer> optimizer_;
  at::ScalarType gradients_;
  bool single_;  // the model is not fp64
  std::vector<Part> parts_;
  // By state name: those of all parts, one after another. Taken when they are first needed: a
  // worker of parameter servers never needs them.
  const std::vector<at::Tensor>& moments() const;
  mutable std::vector<at::Tensor> moments_;
  at::TensorOptions wide_;
  std::vector<std::vector<UpdateRange>> ranges_;  // by part, where a walk shows them
  Walk walk_;
  bool copies_ = false;              // a gradient is copied before it is used
  std::optional<at::Tensor> scale_;  // by which copies are divided: in double precision
  at::Tensor wide_grad_;  // one piece, where gradients are narrower than masters or must stay
  StepScalars scalars_;
  at::Tensor halted_;  // without a loss scale that is scalars_.skip
  std::optional<LossScale> loss_scale_;
  std::function<void(at::Tensor)> sum_over_owners_;

  // fn(slice) for every range, with its gradient in the wide type.
  template <class Fn>
  void each_slice(const std::vector<at::Tensor>& grads, bool values_change, const Fn& fn);
  template <class Fn>
  void each_slice_of(const Run& run, const std::vector<UpdateRange>& ranges, const Fn& fn);
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
