// The end of a step as an executor sees it: from gradients to new parameters, entirely on the
// device. Who owns what is the implementation's: all of it (MasterUpdate), slices (ZeroUpdate).
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

// Where other ranks have other parts of a model: sums over them, in place. Empty: there are none.
struct PartSums {
  // Over one rank of each part (other layers, other columns of the same matrices).
  std::function<void(at::Tensor)> all;
  // Over those with other columns of the same matrices: a row for each trainable parameter here, in
  // the order of segments. What they all have whole is counted once.
  std::function<void(at::Tensor rows)> parameters;
};

class Update {
 public:
  virtual ~Update() = default;

  // Sets the masters and the stack's parameters.
  virtual void load(const ValueSource& source) = 0;

  // The learning rate of the next update, a scalar on the device: the caller writes it.
  virtual const at::Tensor& rate() const = 0;

  // One update; `loss` is a scalar on the device.
  virtual void apply(const at::Tensor& loss) = 0;

  // After apply, scalars on the device: the norm of the gradient (without a loss scale, before
  // clipping); 1 where this update left everything as it was; 1 once all will.
  virtual const at::Tensor& norm() const = 0;
  virtual const at::Tensor& skipped() const = 0;
  virtual const at::Tensor& halted() const = 0;

  // What the gradient of the loss is to be multiplied by; null: nothing.
  virtual LossScale* loss_scale() const = 0;

  // Seconds that the last update ran on the host while the device waited for it.
  virtual double host_seconds() const { return 0; }

  // What this rank owns (state_slices.h), in the order of the parameters; slices of one parameter
  // follow each other. `kinds` are the kinds of state that every trainable parameter has.
  virtual const std::vector<std::string>& kinds() const = 0;
  virtual std::vector<StateSlice> slices() const = 0;
  virtual at::TensorOptions state_options() const = 0;  // in which state is assembled
  // The ranks that together own a parameter of this process, and how many of its elements each of
  // them owns, in their order; null: this rank owns all.
  virtual Communicator* owners(const Parameter& /*parameter*/) const { return nullptr; }
  virtual std::vector<std::size_t> owned_by(const Parameter& parameter) const {
    return {std::size_t(parameter.numel())};
  }

  virtual double updates() const = 0;
  // Masters -> parameters, after they were changed from outside.
  virtual void publish() = 0;
  // Goes on after so many updates.
  virtual void restart(double updates) = 0;
};

}  // namespace echelon
