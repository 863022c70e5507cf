// The owner's part of a step: from the gradients of its part of the flat buffer to the new values,
// entirely on the device. Every owner has one, whether it owns everything (one process, data
// parallel), a server's range, or a rank's slices of every unit (ZeRO).
//
//   is everything finite? -> clip by the norm of all gradients -> optimiser on the master values
//
// Masters are fp32 (fp64 for fp64 models). Narrower gradients are widened piece by piece, so the
// extra memory is one piece. Once a loss or a gradient is not finite, this and every later update
// leaves values and state unchanged: the weights stay those of the last good step, however late the
// host notices. With a loss scale, a non-finite gradient skips only its own step, until the scale
// is exhausted.
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
  // A contiguous owned range of the flat buffer.
  struct Part {
    at::Tensor master;                // its values in the wide type; updates change them
    std::vector<UpdateRange> ranges;  // relative to its beginning
  };

  // `type` is the type of the gradients; `device` is where masters and gradients lie. `parts` may
  // be empty, on a pipeline rank whose layers have no parameters. `sum_over_owners` sums a tensor
  // over all owners, in place; it is needed if others own the rest and the optimiser needs whole
  // parameters. `parameters` is the number of trainable parameters. With `scaling`, the gradients
  // carry a loss scale.
  SliceUpdate(std::vector<Part> parts, at::Device device, at::ScalarType type,
              const OptimOptions& options, int parameters = 0,
              std::function<void(at::Tensor)> sum_over_owners = {},
              const std::optional<LossScale::Setup>& scaling = {});

  // The same for masters and state that are not in memory. `walk` visits all of them run by run, in
  // the order of parts, each with its gradient, on the CPU. `ranges` has the ranges of each part.
  struct Run {
    std::size_t part = 0;
    std::int64_t begin = 0;  // within the part
    at::Tensor master, grad;
    std::vector<at::Tensor> state;  // in the order of Optimizer::state_names
  };
  // `values_change`: this walk changes the masters, not only the state.
  using Walk =
      std::function<void(bool values_change, const std::function<void(const Run&)>& visit)>;
  SliceUpdate(std::vector<std::vector<UpdateRange>> ranges, std::int64_t longest_run, Walk walk,
              at::ScalarType type, const OptimOptions& options, int parameters,
              std::function<void(at::Tensor)> sum_over_owners,
              const std::optional<LossScale::Setup>& scaling = {});

  // The learning rate of the next update, a scalar on the device that the caller writes.
  const at::Tensor& rate() const { return scalars_.rate; }

  // A norm of gradients, divided by the loss scale that they carry.
  at::Tensor without_scale(const at::Tensor& norm) const;

  // One update. `norm` is the norm of all gradients, without the loss scale; `loss` is a scalar on
  // the device. May overwrite the gradients. `grads` is empty if a walk provides them.
  void apply(const std::vector<at::Tensor>& grads, const at::Tensor& norm, const at::Tensor& loss);

  const at::Tensor& skipped() const { return scalars_.skip; }  // 1: the last update did nothing
  const at::Tensor& halted() const { return halted_; }  // 1: no later update will change anything
  LossScale* loss_scale() { return loss_scale_ ? &*loss_scale_ : nullptr; }

  // The state kept per element, by part: "master", "exp_avg", ...
  struct PartedState {
    std::string name;
    std::vector<at::Tensor> parts;
  };
  std::vector<PartedState> parted_state() const;

  // The same if there is only one part.
  const at::Tensor& master() const { return parts_.front().master; }
  struct State {
    std::string name;
    at::Tensor flat;
  };
  std::vector<State> state() const;
  double updates() const;
  // Continues after this many updates and clears any record of non-finite values.
  void restart(double updates);

 private:
  void prepare(std::int64_t longest, int parameters, at::TensorOptions wide,
               const std::optional<LossScale::Setup>& scaling);

  OptimOptions options_;
  std::shared_ptr<const Optimizer> optimizer_;
  at::ScalarType gradients_;
  bool single_;  // the model is not fp64
  std::vector<Part> parts_;
  // By state name: the state of all parts, one after another. Allocated on first use, because a
  // worker of parameter servers never needs it.
  const std::vector<at::Tensor>& moments() const;
  mutable std::vector<at::Tensor> moments_;
  at::TensorOptions wide_;
  std::vector<std::vector<UpdateRange>> ranges_;  // by part, if a walk visits them
  Walk walk_;
  bool copies_ = false;              // gradients are copied before use
  std::optional<at::Tensor> scale_;  // copies are divided by this, in double precision
  at::Tensor wide_grad_;  // one piece, if gradients are narrower than masters or must not change
  StepScalars scalars_;
  at::Tensor halted_;  // without a loss scale, the same tensor as scalars_.skip
  std::optional<LossScale> loss_scale_;
  std::function<void(at::Tensor)> sum_over_owners_;

  // Calls fn(slice) for every range, with its gradient in the wide type.
  template <class Fn>
  void each_slice(const std::vector<at::Tensor>& grads, bool values_change, const Fn& fn);
  template <class Fn>
  void each_slice_of(const Run& run, const std::vector<UpdateRange>& ranges, const Fn& fn);
};

// The type of the masters of a model of this type.
at::ScalarType master_type(at::ScalarType type);

// The grain at which an optimiser updates.
Grain grain_of(const OptimOptions& options);

// The ranges within [begin, end) that are updated together, relative to `begin`. None is longer
// than the piece in which gradients of this type are widened.
std::vector<UpdateRange> ranges_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                       std::int64_t end, at::ScalarType type,
                                       Grain grain = Grain::group);
int parameters_of(const std::vector<FlatUnit>& units);  // the trainable ones

}  // namespace echelon
