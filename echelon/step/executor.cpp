#include "echelon/step/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/nn/batch_ranks.h"
#include "echelon/nn/layer_error.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

StepShape step_shape(const Stack& stack, int micro_batches, const std::vector<bool>& own) {
  StepShape shape{stack.size(), micro_batches, {}};
  shape.lowest = stack.lowest_trainable();
  shape.recompute = stack.runs_again();
  std::fill_n(shape.recompute.begin(), shape.lowest, false);
  shape.own = own;
  const auto tied = stack.tied_across();
  shape.tied = std::any_of(tied.begin(), tied.end(), [](const auto* p) { return p->trainable; });
  return shape;
}

Executor::Executor(Stack& stack, Update* update, Table table, StepShape shape)
    : Executor(stack, update, std::move(table), std::move(shape), Links()) {}

Executor::Executor(Stack& stack, Update* update, Table table, StepShape shape, const Links& links)
    : stack_(stack),
      update_(update),
      table_(std::move(table)),
      shape_(std::move(shape)),
      ranks_(links.ranks),
      shards_(links.shards),
      exchange_(links.exchange),
      widening_(stack) {
  if (stack.size() == 0)
    throw InvalidArgument("the model has no layers; add them, and a loss as the last");
  if (shape_.layers != stack.size())
    throw InvalidArgument(
        fmt::format("the step is for {} layers, the model has {}", shape_.layers, stack.size()));
  validate(table_, shape_);
  if (links.neighbours.ranks) {
    boundary_ = std::make_unique<Boundary>(links.neighbours, shape_.micro_batches, stack.device(),
                                           exchange_);
    if (!stack.ties().empty()) ties_ = std::make_unique<Ties>(stack, links.neighbours, exchange_);
  } else if (!shape_.own.empty())
    throw InvalidArgument("the step leaves layers to other ranks, and nothing says to which");
  step_ = at::zeros({}, at::TensorOptions(stack.device()).dtype(at::kLong));
  places_.resize(std::size_t(stack.size()) * std::size_t(shape_.micro_batches));
}

Executor::Place& Executor::place(int layer, int micro_batch) {
  return places_[std::size_t(layer) * std::size_t(shape_.micro_batches) + std::size_t(micro_batch)];
}

at::Tensor Executor::run(const Batch& batch, double weight, std::int64_t first_sample,
                         const at::Tensor& divisor) {
  at::NoGradGuard no_grad;  // a layer that needs autograd turns it on itself
  batch.check();
  const auto samples = batch.samples();
  const int micro_batches = shape_.micro_batches;
  if (samples < micro_batches)
    throw InvalidArgument(fmt::format("a batch of {} sample{} cannot be cut into {} micro-batches",
                                      samples, samples == 1 ? "" : "s", micro_batches));
  if (boundary_) {
    const std::string description = batch.description();
    if (std::exchange(last_batch_, description) != description) forget_sizes();
  }
  const LossScale* scaling = update_ ? update_->loss_scale() : nullptr;
  for (int m = 0; m < micro_batches; ++m) {
    const auto first = samples * m / micro_batches,
               share = samples * (m + 1) / micro_batches - first;
    const auto micro_batch = std::make_shared<const Batch>(batch.narrow(first, share));
    for (int l = 0; l < stack_.size(); ++l) {
      Pass& pass = place(l, m).pass;
      pass = stack_.pass_for(l, micro_batch);
      pass.selective = stack_.recompute() == Recompute::selective;
      pass.draw = {seed_, step_, first_sample + first};
      if (!shape_.goes_back(l)) pass.run = Pass::Run::only;
      pass.input_grads = l == 0 || shape_.goes_back(l - 1);
    }
    place(0, m).inputs = stack_.inputs_of(*micro_batch);
    Pass& last = place(stack_.size() - 1, m).pass;
    last.weight = weight * static_cast<double>(share) / static_cast<double>(samples);
    if (batch.targets.defined()) {
      last.divisor = divisor;
      last.weight = 1;
    }
    if (scaling) last.scale = scaling->scale();
  }
  loss_ = at::zeros({}, at::TensorOptions(stack_.device()).dtype(at::kDouble));
  weight_ = weight;
  if (probe_.before_reduce && batch.targets.defined() && divisor.defined())
    weight_ = batch.targets.sum().div(divisor).item<double>();
  stack_.begin_step();
  if (shards_) shards_->begin_step();
  exchange_->begin_step();
  TensorGroup* const splitters = stack_.tensor_group().get();
  if (splitters) splitters->begin_step();
  const auto sharers = stack_.batch_ranks();
  if (sharers) sharers->begin_step();
  times_ = {};
  traced_.clear();
  const auto start = Clock::now();
  widening_.begin_step();
  for (const Action& action : table_) {
    began_ = Clock::now();
    if (stack_.has_fp32_sums())
      for (const int group : widening_.before(action)) widen(group);
    switch (action.kind) {
      case Action::Kind::forward:
        forward(action);
        break;
      case Action::Kind::recompute:
        recompute(action);
        break;
      case Action::Kind::backward:
      case Action::Kind::input:
        backward(action);
        break;
      case Action::Kind::weight:
        run_later(action);
        break;
      case Action::Kind::receive:
        boundary_->receive_inputs(action.layer, action.micro_batch);
        break;
      case Action::Kind::send:
        boundary_->send_outputs(action.layer, action.micro_batch,
                                std::exchange(place(action.layer, action.micro_batch).outputs, {}));
        break;
      case Action::Kind::receive_grad:
        boundary_->receive_grads(action.layer, action.micro_batch);
        break;
      case Action::Kind::send_grad:
        boundary_->send_grads(
            action.layer, action.micro_batch,
            std::exchange(place(action.layer, action.micro_batch).input_grads, {}));
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
      case Action::Kind::wait_unshard:
        shards_->wait_unshard(action.group);
        break;
      case Action::Kind::reshard:
        shards_->reshard(action.group);
        break;
      case Action::Kind::alloc_grads:
        shards_->alloc_grads(action.group);
        break;
      case Action::Kind::scatter:
        shards_->scatter(action.group);
        break;
      case Action::Kind::tie:
        ties_->sum();
        break;
      case Action::Kind::synchronize:
        synchronize();
        break;
      case Action::Kind::update:
        update();
        break;
      case Action::Kind::push:
        complete_gradients(0, stack_.sums().numel());
        break;
    }
    if (slow_ > 1 && computes(action))
      std::this_thread::sleep_for((slow_ - 1) * (Clock::now() - began_));
    if (tracing_) traced_.push_back({action, began_, Clock::now()});
  }
  const auto count = [this](const WorkClock& clock) {
    times_.exposed += clock.waited();
    times_.hidden += clock.hidden();
  };
  count(exchange_->clock());
  if (splitters) count(splitters->clock());
  if (sharers) count(sharers->clock());
  if (stack_.device().is_cpu())
    times_.compute = since(start) - times_.exposed - times_.update;
  else
    times_ = {.update = update_ ? update_->host_seconds() : 0};
  return loss_;
}

void Executor::forget_sizes() {
  if (boundary_) boundary_->forget_sizes();
}

at::Tensor Executor::infer(
    const Batch& batch,
    const std::function<void(const at::Tensor& output, const at::Tensor& target)>& observe) {
  const at::NoGradGuard no_grad;
  forget_sizes();
  batch.check();
  const auto shared = std::make_shared<const Batch>(batch);
  Tensors x = stack_.inputs_of(batch);
  std::vector<int> here;  // gathered groups
  const auto let_go = [&](const std::vector<int>& needed) {
    std::erase_if(here, [&](int group) {
      const bool goes = std::find(needed.begin(), needed.end(), group) == needed.end();
      if (goes) shards_->reshard(group);
      return goes;
    });
  };
  for (int l = 0; l < stack_.size(); ++l) {
    if (!shape_.has(l)) continue;
    if (l > 0 && !shape_.has(l - 1)) x = boundary_->take_inputs(l, 0);
    const auto needed = shape_.sliced_values ? shape_.uses[std::size_t(l)] : std::vector<int>();
    let_go(needed);
    for (const int group : needed) {
      if (std::find(here.begin(), here.end(), group) != here.end()) continue;
      shards_->gather(group);
      shards_->wait_unshard(group);
      here.push_back(group);
    }
    Pass pass = stack_.pass_for(l, shared);
    pass.training = false;
    pass.observe = observe;
    x = in_layer(stack_, l, "forward", x, [&] { return stack_.layer(l).forward_all(x, pass); });
    if (l + 1 < stack_.size() && !shape_.has(l + 1)) boundary_->send_outputs(l, 0, x);
  }
  let_go({});
  if (boundary_) boundary_->synchronize();
  forget_sizes();
  const bool has_last = shape_.has(stack_.size() - 1);
  const at::Tensor output = has_last ? only_output(std::move(x)) : at::Tensor();
  if (!batch.target.defined()) return boundary_ ? boundary_->from_last(output) : output;
  return has_last ? output : at::zeros({}, at::TensorOptions(stack_.device()).dtype(at::kDouble));
}

// No later backward changes these elements of the Stack's buffer.
void Executor::complete_gradients(std::int64_t begin, std::int64_t end) {
  if (stack_.has_fp32_sums())
    stack_.add_to_sums(begin, end);
  else
    stack_.zero_unwritten_grads(begin, end);
}

void Executor::widen(int group) {
  if (shards_) return shards_->widen(group);
  const auto& place = stack_.groups()[std::size_t(group)];
  stack_.add_to_sums(place.begin, place.begin + place.numel);
}

// The tensors of a Work must not be touched before it is done: nothing writes to these gradients
// until the update.
void Executor::reduce(const Bucket& bucket) {
  complete_gradients(bucket.begin, bucket.end);
  const at::Tensor part = stack_.sums().narrow(0, bucket.begin, bucket.numel());
  if (probe_.before_reduce) probe_.before_reduce(part, weight_);
  const auto& ranks = ranks_.of(bucket.summed_over);
  reductions_.push_back(ranks ? exchange_->sum(*ranks, part,
                                               {.purpose = Purpose::gradients,
                                                .part = int(reductions_.size()),
                                                .algorithm = algorithm_,
                                                .told_apart = tracing_})
                              : Work());
}

void Executor::synchronize() {
  if (shards_) shards_->synchronize();
  if (boundary_) {
    boundary_->synchronize();
    boundary_->share(loss_);
  }
  if (!ranks_.batch()) return;
  auto works = std::exchange(reductions_, {});
  const at::Device device = stack_.device();
  works.push_back(
      exchange_->sum(*ranks_.batch(), loss_, {.purpose = Purpose::loss, .blocking = true}));
  for (std::size_t i = 0; i < works.size(); ++i) {
    exchange_->wait(works[i], device);
    const auto span = device.is_cpu() ? works[i].span() : std::optional<WorkSpan>();
    if (!tracing_ || !span || i + 1 == works.size()) continue;
    for (auto& one : traced_)
      if (one.action.kind == Action::Kind::reduce && one.action.bucket == int(i))
        one = {one.action, span->begin, span->end};
  }
}

void Executor::update() {
  const auto start = Clock::now();
  MemoryScope scope(MemoryKind::workspace);
  if (!shards_) complete_gradients(0, stack_.sums().numel());
  if (probe_.before_update) probe_.before_update(stack_.sums());
  update_->apply(loss_);
  times_.update = since(start);
}

// Records that a message from another rank has arrived: an action begins when it has all its
// inputs.
Tensors Executor::waited_for(Tensors tensors) {
  began_ = Clock::now();
  return tensors;
}

void Executor::forward(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  if (action.layer > 0 && !shape_.has(action.layer - 1))
    here.inputs = waited_for(boundary_->take_inputs(action.layer, action.micro_batch));
  const bool again = shape_.recomputes(action.layer);
  if (again) here.pass.run = Pass::Run::first;
  const Tensors inputs = again ? here.inputs : std::exchange(here.inputs, {});
  Tensors outputs = in_layer(stack_, action.layer, "forward", inputs, [&] {
    return stack_.layer(action.layer).forward_all(inputs, here.pass);
  });
  if (!shape_.goes_back(action.layer)) here.pass = {};  // it was used for the last time
  if (action.layer + 1 < stack_.size()) {
    (shape_.has(action.layer + 1) ? place(action.layer + 1, action.micro_batch).inputs
                                  : here.outputs) = std::move(outputs);
    return;
  }
  const at::Tensor loss = only_output(std::move(outputs));
  if (loss.numel() != 1)
    throw InvalidArgument(fmt::format(
        "the model's last layer gave {} values; it must be a loss, which gives one", loss.numel()));
  loss_.add_(loss.reshape({}), here.pass.weight);
}

void Executor::recompute(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  here.pass.run = Pass::Run::again;
  const Tensors inputs = std::exchange(here.inputs, {});
  in_layer(stack_, action.layer, "recompute", inputs,
           [&] { return stack_.layer(action.layer).forward_all(inputs, here.pass); });
}

void Executor::backward(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  if (action.layer + 1 < stack_.size() && !shape_.has(action.layer + 1))
    here.grads = waited_for(boundary_->take_grads(action.layer, action.micro_batch));
  // Deferring here would keep recomputed activations until the weight part, for several
  // micro-batches at once.
  here.pass.defer_weight_grads =
      action.kind == Action::Kind::input && !shape_.recomputes(action.layer);
  const Tensors output_grads = std::exchange(here.grads, {});
  Tensors grads = in_layer(stack_, action.layer, "backward", output_grads, [&] {
    return stack_.layer(action.layer).backward_all(output_grads, here.pass);
  });
  if (action.kind == Action::Kind::input) {
    here.pass.saved.clear();
  } else {
    here.pass = {};
  }
  if (action.layer == 0 || !shape_.goes_back(action.layer - 1)) return;
  if (shape_.has(action.layer - 1))
    place(action.layer - 1, action.micro_batch).grads = std::move(grads);
  else
    here.input_grads = std::move(grads);
}

void Executor::run_later(const Action& action) {
  MemoryScope scope(MemoryKind::activations);
  Place& here = place(action.layer, action.micro_batch);
  for (const auto& gradients : here.pass.later) gradients();
  here.pass = {};
}

}  // namespace echelon
