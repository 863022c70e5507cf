#include "echelon/step/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/nn/memory.h"

namespace echelon {

Executor::Executor(Stack& stack, MasterUpdate& update, Table table, int micro_batches,
                   std::shared_ptr<Communicator> ranks)
    : stack_(stack),
      update_(update),
      table_(std::move(table)),
      micro_batches_(micro_batches),
      ranks_(std::move(ranks)) {
  if (stack.size() == 0)
    throw InvalidArgument("the model has no layers; add them, and a loss as the last");
  validate(table_, stack.size(), micro_batches);
  places_.resize(static_cast<std::size_t>(stack.size()) * static_cast<std::size_t>(micro_batches));
}

Executor::Place& Executor::place(int layer, int micro_batch) {
  return places_[static_cast<std::size_t>(layer) * static_cast<std::size_t>(micro_batches_) +
                 static_cast<std::size_t>(micro_batch)];
}

at::Tensor Executor::run(const at::Tensor& input, const at::Tensor& target) {
  at::NoGradGuard no_grad;  // a layer that wants autograd turns it on for itself
  const auto samples = input.size(0);
  if (samples % micro_batches_ != 0 || target.size(0) != samples) {
    throw InvalidArgument(
        fmt::format("a batch of {} inputs and {} targets cannot be cut into {} equal micro-batches",
                    samples, target.size(0), micro_batches_));
  }
  const auto share = samples / micro_batches_;
  for (int m = 0; m < micro_batches_; ++m) {
    place(0, m).input = input.narrow(0, m * share, share);
    Pass& last = place(stack_.size() - 1, m).pass;
    last.target = target.narrow(0, m * share, share);
    last.weight = 1.0 / micro_batches_;
  }
  loss_ = at::zeros({}, at::TensorOptions(stack_.device()).dtype(at::kDouble));
  stack_.begin_step();
  for (const Action& action : table_) {
    switch (action.kind) {
      case Action::Kind::forward:
        forward(action);
        break;
      case Action::Kind::backward:
        backward(action);
        break;
      case Action::Kind::reduce:
        reduce();
        break;
      case Action::Kind::update: {
        MemoryScope scope(MemoryKind::workspace);
        stack_.zero_unwritten_grads();
        update_.apply(loss_);
        break;
      }
    }
  }
  return loss_;
}

void Executor::reduce() {
  stack_.zero_unwritten_grads();
  ranks_->all_reduce(stack_.grads(), ReduceOp::average, {.tag = "gradients", .blocking = true})
      .wait();
  ranks_->all_reduce(loss_, ReduceOp::average, {.tag = "loss", .blocking = true}).wait();
}

void Executor::forward(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  at::Tensor output = stack_.layer(action.layer).forward(std::exchange(here.input, {}), here.pass);
  if (action.layer + 1 < stack_.size()) {
    place(action.layer + 1, action.micro_batch).input = std::move(output);
  } else if (output.numel() != 1) {
    throw InvalidArgument(
        fmt::format("the model's last layer gave {} values; it must be a loss, which gives one",
                    output.numel()));
  } else {
    loss_.add_(output.reshape({}), here.pass.weight);
  }
}

void Executor::backward(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  at::Tensor grad = stack_.layer(action.layer).backward(std::exchange(here.grad, {}), here.pass);
  here.pass = {};
  if (action.layer > 0) place(action.layer - 1, action.micro_batch).grad = std::move(grad);
}

}  // namespace echelon
