// The end of a step in one process, or on ranks that all hold everything: from the gradients of a
// stack to its new parameters, entirely on the device (slice_update.h). If the compute type is wide
// enough, the parameters themselves are the masters. Otherwise the masters are cast to parameters
// after each update.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/optim/slice_update.h"
#include "echelon/optim/update.h"

namespace echelon {

class MasterUpdate final : public Update {
 public:
  // Allocates optimiser state, and masters if needed, for the trainable units of an allocated
  // stack.
  MasterUpdate(Stack& stack, const OptimOptions& options,
               const std::optional<LossScale::Setup>& scaling = {}, PartSums part_sums = {});

  void load(const ValueSource& source) override;
  const at::Tensor& rate() const override { return slice_->rate(); }
  void apply(const at::Tensor& loss) override;
  const at::Tensor& norm() const override { return norm_; }
  const at::Tensor& skipped() const override { return slice_->skipped(); }
  const at::Tensor& halted() const override { return slice_->halted(); }
  LossScale* loss_scale() const override { return slice_->loss_scale(); }
  double updates() const override { return slice_->updates(); }
  void publish() override;
  void restart(double updates) override { slice_->restart(updates); }
  const std::vector<std::string>& kinds() const override { return kinds_; }
  std::vector<StateSlice> slices() const override;
  at::TensorOptions state_options() const override { return slice_->master().options(); }

  // Everything that a resumed run needs, as flat buffers with the segments of the stack's trainable
  // units.
  std::vector<SliceUpdate::State> state() const { return slice_->state(); }

 private:
  Stack& stack_;
  PartSums part_sums_;
  std::vector<std::string> kinds_{"master"};
  std::unique_ptr<SliceUpdate> slice_;
  at::Tensor norm_;
};

}  // namespace echelon
