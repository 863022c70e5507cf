#include "echelon/step/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/nn/memory.h"

namespace echelon {

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Executor::Executor(Stack& stack, Update* update, Table table, StepShape shape,
                   std::shared_ptr<Communicator> ranks, Shards* shards)
    : stack_(stack),
      update_(update),
      table_(std::move(table)),
      shape_(std::move(shape)),
      ranks_(std::move(ranks)),
      shards_(shards) {
  if (stack.size() == 0)
    throw InvalidArgument("the model has no layers; add them, and a loss as the last");
  if (shape_.layers != stack.size())
    throw InvalidArgument(
        fmt::format("the step is for {} layers, the model has {}", shape_.layers, stack.size()));
  validate(table_, shape_);
  step_ = at::zeros({}, at::TensorOptions(stack.device()).dtype(at::kLong));
  places_.resize(std::size_t(stack.size()) * std::size_t(shape_.micro_batches));
}

Executor::Place& Executor::place(int layer, int micro_batch) {
  return places_[std::size_t(layer) * std::size_t(shape_.micro_batches) + std::size_t(micro_batch)];
}

at::Tensor Executor::run(const at::Tensor& input, const at::Tensor& target, double weight,
                         std::int64_t first_sample) {
  at::NoGradGuard no_grad;  // a layer that wants autograd turns it on for itself
  const auto samples = input.size(0);
  const int micro_batches = shape_.micro_batches;
  if (samples < micro_batches || target.size(0) != samples) {
    throw InvalidArgument(
        fmt::format("a batch of {} inputs and {} targets cannot be cut into {} micro-batches",
                    samples, target.size(0), micro_batches));
  }
  const LossScale* scaling = update_ ? update_->loss_scale() : nullptr;
  for (int m = 0; m < micro_batches; ++m) {
    const auto first = samples * m / micro_batches,
               share = samples * (m + 1) / micro_batches - first;
    for (int l = 0; l < stack_.size(); ++l) {
      Pass& pass = place(l, m).pass;
      pass = {};
      pass.selective = stack_.recompute() == Recompute::selective;
      pass.draw = {seed_, step_, first_sample + first};
    }
    place(0, m).input = input.narrow(0, first, share);
    Pass& last = place(stack_.size() - 1, m).pass;
    last.target = target.narrow(0, first, share);
    last.weight = weight * static_cast<double>(share) / static_cast<double>(samples);
    if (scaling) last.scale = scaling->scale();
  }
  loss_ = at::zeros({}, at::TensorOptions(stack_.device()).dtype(at::kDouble));
  weight_ = weight;
  stack_.begin_step();
  if (shards_) shards_->begin_step();
  times_ = {};
  traced_.clear();
  const auto start = Clock::now();
  for (const Action& action : table_) {
    const auto begin = Clock::now();
    switch (action.kind) {
      case Action::Kind::forward:
        forward(action);
        break;
      case Action::Kind::recompute:
        recompute(action);
        break;
      case Action::Kind::backward:
        backward(action);
        break;
      case Action::Kind::reduce:
        reduce(shape_.buckets[std::size_t(action.bucket)]);
        break;
      case Action::Kind::fetch:
        shards_->fetch(action.group);
        break;
      case Action::Kind::gather:
        shards_->gather(action.group);
        break;
      case Action::Kind::use:
        shards_->use(action.group);
        break;
      case Action::Kind::release:
        shards_->release(action.group);
        break;
      case Action::Kind::open:
        shards_->open(action.group);
        break;
      case Action::Kind::scatter:
        shards_->scatter(action.group);
        break;
      case Action::Kind::settle:
        settle();
        break;
      case Action::Kind::update:
        update();
        break;
      case Action::Kind::hand_over:
        stack_.zero_unwritten_grads(0, stack_.grads().numel());
        break;
    }
    if (slow_ > 1 && action.kind <= Action::Kind::backward)
      std::this_thread::sleep_for((slow_ - 1) * (Clock::now() - begin));
    if (tracing_) traced_.push_back({action, begin, Clock::now()});
  }
  if (shards_) {
    times_.exposed += shards_->waited();
    times_.hidden += std::max(0.0, shards_->exchanging() - shards_->waited());
  }
  if (stack_.device().is_cpu())
    times_.compute = since(start) - times_.exposed - times_.update;
  else
    times_ = {.update = update_ ? update_->host_seconds() : 0};
  return loss_;
}

// The tensors of a work must not be touched before it is done: nothing writes to these gradients
// until the update.
void Executor::reduce(const Bucket& bucket) {
  if (!stack_.has_fp32_sums()) stack_.zero_unwritten_grads(bucket.begin, bucket.end);
  const at::Tensor part = stack_.sums().narrow(0, bucket.begin, bucket.numel());
  if (probe_.before_reduce) probe_.before_reduce(part, weight_);
  reductions_.push_back(ranks_->all_reduce(
      part, ReduceOp::sum,
      {.tag = tracing_ ? fmt::format("gradients {}", reductions_.size()) : "gradients",
       .algorithm = algorithm_}));
}

void Executor::settle() {
  if (shards_) shards_->settle();
  const auto start = Clock::now();
  auto works = std::exchange(reductions_, {});
  works.push_back(ranks_->all_reduce(loss_, ReduceOp::sum, {.tag = "loss", .blocking = true}));
  if (stack_.device().is_cuda()) {
    for (const Work& work : works) work.follow();
    return;
  }
  double running = 0;
  for (std::size_t i = 0; i < works.size(); ++i) {
    works[i].wait();
    const auto span = works[i].span();
    if (!span) continue;
    running += std::chrono::duration<double>(span->end - span->begin).count();
    if (!tracing_ || i + 1 == works.size()) continue;
    for (auto& one : traced_)
      if (one.action.kind == Action::Kind::reduce && one.action.bucket == int(i))
        one = {one.action, span->begin, span->end};
  }
  times_.exposed = since(start);
  times_.hidden = std::max(0.0, running - times_.exposed);
}

void Executor::update() {
  const auto start = Clock::now();
  MemoryScope scope(MemoryKind::workspace);
  if (!shards_ && !stack_.has_fp32_sums()) stack_.zero_unwritten_grads(0, stack_.grads().numel());
  if (probe_.before_update) probe_.before_update(stack_.sums());
  update_->apply(loss_);
  times_.update = since(start);
}

void Executor::forward(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  const bool again = shape_.recomputes(action.layer);
  if (again) here.pass.run = Pass::Run::first;
  at::Tensor output = stack_.layer(action.layer)
                          .forward(again ? here.input : std::exchange(here.input, {}), here.pass);
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

void Executor::recompute(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  here.pass.run = Pass::Run::again;
  stack_.layer(action.layer).forward(std::exchange(here.input, {}), here.pass);
}

void Executor::backward(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  at::Tensor grad = stack_.layer(action.layer).backward(std::exchange(here.grad, {}), here.pass);
  here.pass = {};
  if (stack_.has_fp32_sums()) stack_.add_to_sums(action.layer);
  if (action.layer > 0) place(action.layer - 1, action.micro_batch).grad = std::move(grad);
}

}  // namespace echelon
