// The end of a step of one process, or of ranks that all hold everything: from the gradients of a
// stack to its new parameters, entirely on the device (slice_update.h). Where the compute type is
// wide enough the masters are the parameters themselves; otherwise they are cast after each update.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/optim/slice_update.h"

namespace echelon {

class MasterUpdate {
 public:
  // Allocates masters (where needed) and optimiser state for the trainable units of an allocated
  // stack.
  MasterUpdate(Stack& stack, const OptimOptions& options);

  // Sets the masters and the stack's parameters.
  void load(const ValueSource& source);

  // The learning rate of the next update, a scalar on the device: the caller writes it.
  const at::Tensor& rate() const { return slice_->rate(); }

  // One update; `loss` is a scalar on the device.
  void apply(const at::Tensor& loss);

  // After apply, scalars on the device: the gradient norm before clipping, and 1 once anything was
  // not finite.
  const at::Tensor& norm() const { return norm_; }
  const at::Tensor& halted() const { return slice_->halted(); }

  // Everything that a resumed run needs, as flat buffers with the segments of the stack's trainable
  // units.
  std::vector<SliceUpdate::State> state() const { return slice_->state(); }
  double updates() const { return slice_->updates(); }
  void publish();  // masters -> parameters, after they were changed from outside
  void restart(double updates) { slice_->restart(updates); }

 private:
  Stack& stack_;
  std::unique_ptr<SliceUpdate> slice_;
  at::Tensor norm_;
};

}  // namespace echelon
