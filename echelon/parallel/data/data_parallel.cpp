// Buckets are filled in the reverse order of registration, which approximates the order of
// backward. All ranks must start their reductions in the same order, so a bucket is reduced when it
// and all buckets before it are full. Buckets that stay incomplete, because backward did not reach
// some parameters, are reduced in wait().
#include "echelon/parallel/data/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <mutex>

#include "echelon/base/error.h"
#include "echelon/nn/batch_ranks.h"
#include "echelon/nn/sync_batch_norm.h"
#include "echelon/parallel/data/bucket.h"
#include "echelon/step/exchange.h"

namespace echelon {

struct DataParallel::State {
  struct Slot {  // of a parameter in its bucket
    at::Tensor parameter, grad;
    std::size_t bucket = 0;
    bool ready = false;
  };
  struct Filling {
    at::Tensor memory;
    std::size_t missing = 0, slots = 0;
    Work work;
  };

  std::shared_ptr<Communicator> ranks;
  std::shared_ptr<Exchange> exchange = plain_exchange();
  std::vector<Slot> slots;
  std::vector<Filling> buckets;
  std::size_t next = 0;  // the next bucket to reduce
  int accumulating = 0;
  bool detached = false;
  std::mutex mutex;  // hooks run in autograd's threads

  // Moves the gradient that autograd accumulated into its place in the bucket.
  void settle_grad(Slot& slot) {
    const at::NoGradGuard no_grad;
    at::Tensor& grad = slot.parameter.mutable_grad();
    if (grad.defined() && grad.is_same(slot.grad)) return;
    if (grad.defined() && grad.const_data_ptr() != slot.grad.const_data_ptr())
      slot.grad.copy_(grad);
    else if (!grad.defined())
      slot.grad.zero_();
    grad = slot.grad;
  }

  void arrived(std::size_t index) {
    const std::lock_guard lock(mutex);
    if (detached) return;
    Slot& slot = slots[index];
    if (slot.bucket < next)
      throw InvalidArgument(
          "a second backward() before wait(): the gradients of the first are being averaged; call "
          "wait() between them, or hold the exchange back with accumulate()");
    settle_grad(slot);
    if (accumulating > 0 || std::exchange(slot.ready, true)) return;
    --buckets[slot.bucket].missing;
    begin_full();
  }

  void begin_full() {
    while (next < buckets.size() && buckets[next].missing == 0) begin(buckets[next++]);
  }

  void begin(Filling& bucket) {
    bucket.work = exchange->sum(*ranks, bucket.memory,
                                {.purpose = Purpose::gradients,
                                 .part = int(&bucket - buckets.data()),
                                 .op = ReduceOp::average});
  }
};

class DataParallel::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<State> state, std::size_t index) : state_(std::move(state)), index_(index) {}
  void operator()(const torch::autograd::Variable&) override {
    if (const auto state = state_.lock()) state->arrived(index_);
  }

 private:
  std::weak_ptr<State> state_;
  std::size_t index_;
};

DataParallel::DataParallel(torch::nn::Module& module, std::shared_ptr<Communicator> ranks,
                           const ParallelOptions& options)
    : state_(std::make_shared<State>()), module_(module) {
  const at::NoGradGuard no_grad;
  State& state = *state_;
  state.ranks = std::move(ranks);
  for (auto& parameter : module.parameters()) {
    state.ranks->broadcast(parameter.detach(), 0, {.tag = "first values", .blocking = true}).wait();
    if (parameter.requires_grad()) state.slots.push_back({parameter, {}});
  }
  share_buffers();
  if (has_sync_batch_norm(module)) {
    // A communicator of its own: which bucket is full at what time may differ between ranks.
    batch_ranks_ =
        std::make_shared<BatchRanks>(state.ranks->split(/*colour=*/0, state.ranks->rank()));
    share_batch(module, batch_ranks_);
  }
  if (state.slots.empty()) throw InvalidArgument("no parameter of the module needs a gradient");
  std::reverse(state.slots.begin(), state.slots.end());

  // A bucket holds one type on one device.
  BucketSizes sizes;
  std::vector<std::vector<std::size_t>> members;
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < state.slots.size(); ++i) {
    const at::Tensor& p = state.slots[i].parameter;
    sizes = bucket_sizes(state.ranks->link(), std::int64_t(p.element_size()), options.bucket_mib);
    const bool same =
        !members.empty() &&
        state.slots[members.back().front()].parameter.options().type_equal(p.options());
    if (!same || filled >= (members.size() == 1 ? sizes.first : sizes.others)) {
      members.emplace_back();
      filled = 0;
    }
    members.back().push_back(i);
    filled += p.numel();
  }
  for (std::size_t b = 0; b < members.size(); ++b) {
    std::int64_t numel = 0;
    const at::Tensor& first = state.slots[members[b].front()].parameter;
    for (const std::size_t i : members[b]) numel += state.slots[i].parameter.numel();
    State::Filling bucket;
    bucket.memory = first.is_cpu() ? state.ranks->allocate({numel}, first.scalar_type()).zero_()
                                   : at::zeros({numel}, first.options().requires_grad(false));
    bucket.missing = bucket.slots = members[b].size();
    std::int64_t at = 0;
    for (const std::size_t i : members[b]) {
      auto& slot = state.slots[i];
      slot.bucket = b;
      // The same memory, but not a view as far as autograd knows: optimisers detach gradients in
      // place.
      slot.grad = bucket.memory.narrow(0, at, slot.parameter.numel())
                      .view(slot.parameter.sizes())
                      .variable_data();
      slot.parameter.mutable_grad() = slot.grad;
      at += slot.parameter.numel();
    }
    state.buckets.push_back(std::move(bucket));
  }
  for (std::size_t i = 0; i < state.slots.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(state.slots[i].parameter,
                                                   std::make_unique<Hook>(state_, i));
}

DataParallel::~DataParallel() {
  const std::lock_guard lock(state_->mutex);
  state_->detached = true;
}

void DataParallel::wait() {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  for (auto& slot : state.slots)
    if (!slot.ready) state.settle_grad(slot);
  while (state.next < state.buckets.size()) state.begin(state.buckets[state.next++]);
  for (auto& bucket : state.buckets) {
    bucket.work.wait();  // on a GPU too: users read gradients from any stream
    bucket.missing = bucket.slots;
  }
  for (auto& slot : state.slots) slot.ready = false;
  state.next = 0;
}

void DataParallel::share_buffers() {
  for (auto& buffer : module_.buffers())
    state_->ranks->broadcast(buffer, 0, {.tag = "buffers", .blocking = true}).wait();
}

std::size_t DataParallel::buckets() const { return state_->buckets.size(); }

DataParallel::Accumulation::Accumulation(DataParallel& of) : of_(of) {
  const std::lock_guard lock(of_.state_->mutex);
  ++of_.state_->accumulating;
}

DataParallel::Accumulation::~Accumulation() {
  const std::lock_guard lock(of_.state_->mutex);
  --of_.state_->accumulating;
}

}  // namespace echelon
