#include "echelon/parallel/zero/zero_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "echelon/nn/memory.h"

namespace echelon {
namespace {

constexpr std::size_t most_scattering = 2;  // groups, whose memory is held meanwhile

}  // namespace

Stack::Placement ZeroShards::placement(std::shared_ptr<Communicator> ranks, int stage,
                                       at::Device device, std::int64_t smallest_group) {
  Stack::Placement placement;
  placement.shards = ranks->size();
  placement.smallest = smallest_group;
  placement.lent_values = stage >= 3;
  placement.lent_gradients = stage >= 2;
  if (device.is_cpu())
    placement.values = placement.gradients = [ranks](std::int64_t numel, at::ScalarType type) {
      return ranks->allocate({numel}, type).zero_();
    };
  return placement;
}

ZeroShards::ZeroShards(Stack& stack, std::shared_ptr<Communicator> ranks, int stage)
    : stack_(stack), ranks_(std::move(ranks)), stage_(stage) {
  std::int64_t all = 0;
  for (int g = 0; g < int(stack.groups().size()); ++g) {
    first_.push_back(all);
    all += slice_numel(g);
  }
  const auto memory = [&](MemoryKind kind) {
    MemoryScope scope(kind);
    return stack.device().is_cpu()
               ? ranks_->allocate({all}, stack.type()).zero_()
               : at::zeros({all}, at::TensorOptions(stack.device()).dtype(stack.type()));
  };
  if (stage >= 3) own_values_ = memory(MemoryKind::parameters);
  if (stage >= 2) own_grads_ = memory(MemoryKind::gradients);
  gathering_.resize(first_.size());
  kept_.resize(first_.size(), false);
}

std::int64_t ZeroShards::slice_numel(int group) const {
  return stack_.groups()[std::size_t(group)].numel / ranks_->size();
}

std::int64_t ZeroShards::slice_begin(int group) const {
  return stack_.groups()[std::size_t(group)].begin + ranks_->rank() * slice_numel(group);
}

at::Tensor ZeroShards::values(int group) const {
  const auto numel = slice_numel(group);
  return stage_ >= 3 ? own_values_.narrow(0, first_[std::size_t(group)], numel)
                     : stack_.group_values(group).narrow(0, ranks_->rank() * numel, numel);
}

at::Tensor ZeroShards::grads(int group) const {
  const auto numel = slice_numel(group);
  return stage_ >= 2 ? own_grads_.narrow(0, first_[std::size_t(group)], numel)
                     : stack_.group_grads(group).narrow(0, ranks_->rank() * numel, numel);
}

at::Tensor ZeroShards::take(std::int64_t numel) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->numel() >= numel && (best == free_.end() || it->numel() < best->numel())) best = it;
  if (best != free_.end()) {
    const at::Tensor memory = *best;
    free_.erase(best);
    return memory;
  }
  MemoryScope scope(MemoryKind::communication);
  return stack_.device().is_cpu()
             ? ranks_->allocate({numel}, stack_.type())
             : at::zeros({numel}, at::TensorOptions(stack_.device()).dtype(stack_.type()));
}

void ZeroShards::wait(Work& work) {
  if (stack_.device().is_cuda()) return work.follow();
  const auto start = std::chrono::steady_clock::now();
  work.wait();
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (const auto span = work.span())
    exchanging_ += std::chrono::duration<double>(span->end - span->begin).count();
}

void ZeroShards::publish() {
  for (int g = 0; g < int(first_.size()); ++g)
    gathering_[std::size_t(g)] =
        ranks_->all_gather(stack_.group_values(g), values(g), {.tag = "parameters"});
}

void ZeroShards::wait_for_values() {
  if (stage_ < 3)
    for (int g = 0; g < int(gathering_.size()); ++g) use(g);
}

at::Tensor ZeroShards::infer(const at::Tensor& input, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  if (stage_ < 3) {
    wait_for_values();
    return stack_.infer(input, target);
  }
  at::Tensor x = input;
  std::vector<int> here;
  for (int l = 0; l < stack_.size(); ++l) {
    const auto needed = stack_.groups_of(l);
    const auto needs = [&](int g) {
      return std::find(needed.begin(), needed.end(), g) != needed.end();
    };
    std::erase_if(here, [&](int g) {
      if (!needs(g)) release(g);
      return !needs(g);
    });
    for (const int g : needed) {
      if (std::find(here.begin(), here.end(), g) != here.end()) continue;
      gather(g);
      use(g);
      here.push_back(g);
    }
    Pass pass;
    pass.training = false;
    if (l + 1 == stack_.size()) pass.target = target;
    x = stack_.layer(l).forward(x, pass);
  }
  for (const int g : here) release(g);
  return x;
}

void ZeroShards::gather(int group) {
  stack_.lend_values(group, take(stack_.groups()[std::size_t(group)].numel));
  gathering_[std::size_t(group)] =
      ranks_->all_gather(stack_.group_values(group), values(group), {.tag = "parameters"});
}

void ZeroShards::use(int group) {
  auto& work = gathering_[std::size_t(group)];
  wait(work);
  work = {};
}

void ZeroShards::release(int group) { free_.push_back(stack_.take_back_values(group)); }

// What has arrived is put away first, since its memory may do; and the same group of an earlier
// micro-batch, whose place this is.
void ZeroShards::open(int group) {
  for (std::size_t i = 0; i < scattering_.size(); ++i)
    if (scattering_[i].group == group || scattering_[i].work.done() ||
        i + most_scattering <= scattering_.size())
      finish(scattering_[i]);
  std::erase_if(scattering_, [](const Scattering& one) { return one.group < 0; });
  stack_.lend_grads(group, take(stack_.groups()[std::size_t(group)].numel));
  stack_.forget_grads(group);
}

void ZeroShards::scatter(int group) {
  const auto& place = stack_.groups()[std::size_t(group)];
  stack_.zero_unwritten_grads(place.begin, place.begin + place.numel);
  const at::Tensor all = stack_.group_grads(group);
  const auto numel = slice_numel(group);
  scattering_.push_back({group, ranks_->reduce_scatter(all.narrow(0, ranks_->rank() * numel, numel),
                                                       all, ReduceOp::sum, {.tag = "gradients"})});
}

void ZeroShards::finish(Scattering& one) {
  const at::NoGradGuard no_grad;
  const int group = one.group;
  wait(one.work);
  one = {-1, {}};
  if (stage_ < 2) return;
  const auto numel = slice_numel(group);
  const at::Tensor memory = stack_.take_back_grads(group);
  const at::Tensor sum = memory.narrow(0, ranks_->rank() * numel, numel);
  at::Tensor mine = grads(group);
  if (kept_[std::size_t(group)])
    mine.add_(sum);
  else
    mine.copy_(sum);
  kept_[std::size_t(group)] = true;
  free_.push_back(memory);
}

void ZeroShards::settle() {
  for (auto& one : scattering_) finish(one);
  scattering_.clear();
}

void ZeroShards::begin_step() {
  std::fill(kept_.begin(), kept_.end(), false);
  exchanging_ = waited_ = 0;
}

}  // namespace echelon
