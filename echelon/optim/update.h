// The end of a step as an executor sees it: from gradients to new parameters, entirely on the
// device. The implementation decides who owns what: everything (MasterUpdate) or slices
// (ZeroUpdate).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/optim/loss_scale.h"
#include "echelon/optim/state_slices.h"

namespace echelon {

class Communicator;

// Sums, in place, over ranks that have other parts of the model. Empty if there are no such ranks.
struct PartSums {
  // Over one rank of each part (other layers, other columns of the same matrices).
  std::function<void(at::Tensor)> all;
  // Over the ranks with other columns of the same matrices. `rows` has one row for each trainable
  // parameter here, in segment order. Parameters that are whole on all of these ranks count once.
  std::function<void(at::Tensor rows)> parameters;
};

class Update {
 public:
  virtual ~Update() = default;

  // Sets the masters and the stack's parameters.
  virtual void load(const ValueSource& source) = 0;

  // The learning rate of the next update, a scalar on the device that the caller writes.
  virtual const at::Tensor& rate() const = 0;

  // One update; `loss` is a scalar on the device.
  virtual void apply(const at::Tensor& loss) = 0;

  // Valid after apply; scalars on the device. norm: the gradient norm without the loss scale,
  // before clipping. skipped: 1 if this update changed nothing. halted: 1 once no later update will
  // change anything.
  virtual const at::Tensor& norm() const = 0;
  virtual const at::Tensor& skipped() const = 0;
  virtual const at::Tensor& halted() const = 0;

  // The factor for the gradient of the loss; null: none.
  virtual LossScale* loss_scale() const = 0;

  // Seconds that the last update ran on the host while the device waited.
  virtual double host_seconds() const { return 0; }

  // The state that this rank owns (state_slices.h), in the order of the parameters; slices of one
  // parameter are adjacent. `kinds` lists the kinds of state that every trainable parameter has.
  virtual const std::vector<std::string>& kinds() const = 0;
  virtual std::vector<StateSlice> slices() const = 0;
  virtual at::TensorOptions state_options() const = 0;  // for assembling state
  // The ranks that together own a parameter of this process, and how many of its elements each rank
  // owns, in rank order. Null: this rank owns all of it.
  virtual Communicator* owners(const Parameter& /*parameter*/) const { return nullptr; }
  virtual std::vector<std::size_t> owned_by(const Parameter& parameter) const {
    return {std::size_t(parameter.numel())};
  }

  virtual double updates() const = 0;
  // Copies masters to parameters, after the masters were changed from outside.
  virtual void publish() = 0;
  // Continues after this many updates.
  virtual void restart(double updates) = 0;
};

}  // namespace echelon
