#include "echelon/parallel/zero/zero_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/comm/hosts.h"
#include "echelon/comm/texts.h"
#include "echelon/nn/memory.h"
#include "echelon/optim/flat_norm.h"

namespace echelon {

Stack::Allocation ZeroShards::allocation(const Placement& placement, const SumRanks& shards,
                                         at::Device device, std::int64_t smallest_group) {
  Stack::Allocation allocation;
  allocation.shards = std::lcm(placement.owners, shards.common_multiple());
  allocation.smallest = smallest_group;
  allocation.sliced_values = placement.values.sliced;
  allocation.sliced_gradients = placement.gradients.sliced;
  if (device.is_cpu())
    allocation.values =
        allocation.gradients = [ranks = shards.batch()](std::int64_t numel, at::ScalarType type) {
          return ranks->allocate({numel}, type).zero_();
        };
  return allocation;
}

Owners owners_of(const SumRanks& of, bool per_host) {
  if (!per_host) return {of, nullptr};
  if (!of.are_alike())
    throw InvalidArgument(
        "zero.shard=host needs gradients that are all summed over the same ranks, and some layers "
        "sum theirs over fewer: use zero.shard=all");
  const auto& ranks = of.batch();
  const Hosts hosts = number_hosts(gather_texts(*ranks, ranks->host(), "hosts"));
  std::vector<std::size_t> count;
  for (const auto& there : hosts.ranks) count.push_back(there.size());
  if (*std::min_element(count.begin(), count.end()) !=
      *std::max_element(count.begin(), count.end()))
    throw InvalidArgument(fmt::format(
        "zero.shard=host needs as many ranks on every host; they are {}: use zero.shard=all",
        fmt::join(count, ", ")));
  const auto me = std::size_t(ranks->rank());
  const int host = hosts.of[me], local = hosts.local[me];
  Owners owners;
  owners.shards = ranks->split(host, local);
  if (count.size() > 1) owners.replicas = ranks->split(local, host);
  return owners;
}

// Copies between a device and host memory on its own stream, concurrently with the computation.
class ZeroShards::CopyLane {
 public:
  CopyLane(at::Device device, int groups)
      : guard_(device.type()),
        device_(device),
        stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
        there_(std::size_t(groups)) {}

  // Runs `begin` on this stream, after all work already queued on the current stream.
  template <class Fn>
  void beside(int group, const Fn& begin) {
    c10::Event before(device_.type());
    before.record(guard_.getStream(device_));
    before.block(stream_);
    const c10::StreamGuard on(stream_);
    begin();
    there_[std::size_t(group)].emplace(device_.type());
    there_[std::size_t(group)]->record(stream_);
  }
  // Makes work queued on the current stream from now on wait for the copy.
  void follow(int group) { there_[std::size_t(group)]->block(guard_.getStream(device_)); }
  // Waits until the copy is done.
  void wait(int group) { there_[std::size_t(group)]->synchronize(); }
  // Waits until all work queued on the current stream is done.
  void wait_for_device() {
    c10::Event done(device_.type());
    done.record(guard_.getStream(device_));
    done.synchronize();
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  at::Device device_;
  c10::Stream stream_;
  std::vector<std::optional<c10::Event>> there_;  // by group
};

namespace {

std::vector<std::int64_t> numels_of(const std::vector<ShardGroup>& groups) {
  std::vector<std::int64_t> numels;
  for (const auto& group : groups) numels.push_back(group.numel);
  return numels;
}

}  // namespace

ZeroShards::~ZeroShards() = default;

ZeroShards::ZeroShards(Stack& stack, Owners owners, const Placement& placement, Tier* tier,
                       std::shared_ptr<Exchange> exchange)
    : stack_(stack),
      ranks_(std::move(owners.shards)),
      replicas_(std::move(owners.replicas)),
      placement_(placement),
      tier_(placement.offloads_values() ? tier : nullptr),
      pooled_(numels_of(stack.groups()), stack.type(), stack.has_fp32_sums(),
              [this](std::int64_t numel, at::ScalarType type) {
                MemoryScope scope(MemoryKind::communication);
                return stack_.device().is_cpu()
                           ? ranks().allocate({numel}, type)
                           : at::zeros({numel}, at::TensorOptions(stack_.device()).dtype(type));
              }),
      exchange_(std::move(exchange)) {
  if (tier && !have_same_owners())
    throw InvalidArgument(
        "zero.offload needs gradients that are all summed over the same ranks, and some layers sum "
        "theirs over fewer: use zero.offload=none");
  std::int64_t all = 0;
  for (int g = 0; g < int(stack.groups().size()); ++g) {
    first_.push_back(all);
    all += slice_numel(g);
  }
  const auto memory = [&](MemoryKind kind, at::ScalarType type) {
    MemoryScope scope(kind);
    return stack.device().is_cpu()
               ? ranks().allocate({all}, type).zero_()
               : at::zeros({all}, at::TensorOptions(stack.device()).dtype(type));
  };
  if (tier_ && stack.device().is_cuda())
    lane_ = std::make_unique<CopyLane>(stack.device(), int(first_.size()));
  if (placement.values.sliced && !tier_) own_values_ = memory(MemoryKind::parameters, stack.type());
  if (placement.gradients.sliced && !tier_) own_grads_ = memory(MemoryKind::gradients, sum_type());
  if (tier_) norms_.resize(first_.size());
  gathering_.resize(first_.size());
  kept_.resize(first_.size(), false);
}

at::ScalarType ZeroShards::sum_type() const {
  return stack_.has_fp32_sums() ? at::kFloat : stack_.type();
}

Communicator* ZeroShards::owners(int group) const {
  return ranks_.of(stack_.groups()[std::size_t(group)].summed_over).get();
}

int ZeroShards::owner_count(int group) const {
  const Communicator* const ranks = owners(group);
  return ranks ? ranks->size() : 1;
}

int ZeroShards::rank(int group) const {
  const Communicator* const ranks = owners(group);
  return ranks ? ranks->rank() : 0;
}

// If a rank owns a whole group, the group is its slice; but gradients may still have to be widened.
bool ZeroShards::pools_values(int group) const { return placement_.values.pooled && owners(group); }
bool ZeroShards::pools_grads(int group) const {
  return placement_.gradients.pooled && (owners(group) || stack_.has_fp32_sums());
}

std::int64_t ZeroShards::slice_numel(int group) const {
  return stack_.groups()[std::size_t(group)].numel / owner_count(group);
}

std::int64_t ZeroShards::slice_begin(int group) const {
  return stack_.groups()[std::size_t(group)].begin + rank(group) * slice_numel(group);
}

at::Tensor ZeroShards::values(int group) const {
  const auto numel = slice_numel(group);
  return placement_.values.sliced
             ? own_values_.narrow(0, first_[std::size_t(group)], numel)
             : stack_.group_values(group).narrow(0, rank(group) * numel, numel);
}

at::Tensor ZeroShards::grads(int group) const {
  const auto numel = slice_numel(group);
  return placement_.gradients.sliced
             ? own_grads_.narrow(0, first_[std::size_t(group)], numel)
             : stack_.group_sums(group).narrow(0, rank(group) * numel, numel);
}

void ZeroShards::publish() {
  for (int g = 0; g < int(first_.size()); ++g) publish(g);
}

void ZeroShards::publish(int group) {
  if (!owners(group)) return;
  gathering_[std::size_t(group)] =
      exchange_->gather(*owners(group), stack_.group_values(group), values(group),
                        {.purpose = Purpose::parameters, .part = group});
}

void ZeroShards::wait_for_values() {
  if (!placement_.values.sliced)
    for (int g = 0; g < int(gathering_.size()); ++g) wait_unshard(g);
}

Tier::Run ZeroShards::kept_values(int group) const {
  const int values = tier_->find("value");
  return {values < 0 ? tier_->find("master") : values, group, 0, slice_numel(group)};
}

Tier::Run ZeroShards::kept_grads(int group) const {
  return {tier_->find("grad"), group, 0, slice_numel(group)};
}

void ZeroShards::fetch(int group) {
  if (tier_) tier_->want(kept_values(group));
}

void ZeroShards::gather(int group) {
  if (!pools_values(group)) return stack_.attach_values(group, values(group));
  stack_.attach_values(group, pooled_.gather(group));
  const at::Tensor all = stack_.group_values(group);
  auto& work = gathering_[std::size_t(group)];
  const Parcel parcel{.purpose = Purpose::parameters, .part = group};
  if (!tier_) {
    work = exchange_->gather(*owners(group), all, values(group), parcel);
    return;
  }
  const at::Tensor kept = tier_->take(kept_values(group));
  if (!lane_) {
    work = exchange_->gather(*owners(group), all, kept, parcel);
    return;
  }
  lane_->beside(group, [&] {
    const auto numel = slice_numel(group);
    at::Tensor mine = all.narrow(0, rank(group) * numel, numel);
    mine.copy_(kept, /*non_blocking=*/true);
    work = exchange_->gather(*owners(group), all, mine, parcel);
  });
}

void ZeroShards::wait_unshard(int group) {
  auto& work = gathering_[std::size_t(group)];
  exchange_->wait(work, stack_.device());
  work = {};
  if (lane_)
    lane_->follow(group);
  else if (tier_)
    tier_->give_back(kept_values(group), /*changed=*/false);
}

void ZeroShards::reshard(int group) {
  if (lane_) {
    lane_->wait(group);
    tier_->give_back(kept_values(group), /*changed=*/false);
  }
  stack_.detach_values(group);
  if (pools_values(group)) pooled_.reshard(group);
}

// Finished reductions are stored first, because their memory can be reused, and so is an earlier
// micro-batch's reduction of the same group, because its memory is needed now. A reduction that
// still has to be summed across hosts waits for its turn: all ranks start their collectives in the
// same order. On a GPU, every step uses the same memory for the same group, so that a graph can
// record it.
void ZeroShards::alloc_grads(int group) {
  if (!pools_grads(group)) {
    stack_.attach_grads(group, grads(group));
    if (!kept_[std::size_t(group)]) stack_.forget_grads(group);
    kept_[std::size_t(group)] = true;  // later micro-batches add to the gradients
    return;
  }
  const std::vector<int> due = pooled_.due(group);
  for (Scattering& one : scattering_)
    if (std::ranges::find(due, one.group) != due.end() ||
        ((!replicas_ || one.across) && stack_.device().is_cpu() && one.work.done()))
      finish(one);
  std::erase_if(scattering_, [](const Scattering& one) { return one.group < 0; });
  stack_.attach_grads(group, pooled_.alloc_grads(group));
  stack_.forget_grads(group);
}

at::Tensor ZeroShards::own_part(const Scattering& one) const {
  const auto numel = slice_numel(one.group);
  return one.all.narrow(0, rank(one.group) * numel, numel);
}

void ZeroShards::widen(int group) {
  const at::NoGradGuard no_grad;
  const auto& place = stack_.groups()[std::size_t(group)];
  if (placement_.gradients.sliced && !stack_.has_attached_sums(group))
    stack_.attach_sums(group, pooled_.widen(group));
  stack_.add_to_sums(place.begin, place.begin + place.numel);
}

void ZeroShards::scatter(int group) {
  const at::NoGradGuard no_grad;
  const auto& place = stack_.groups()[std::size_t(group)];
  if (stack_.has_fp32_sums())
    widen(group);
  else
    stack_.zero_unwritten_grads(place.begin, place.begin + place.numel);
  if (placement_.gradients.sliced && !pools_grads(group)) {
    stack_.detach_grads(group);
    return;
  }
  Scattering one;
  one.group = group;
  one.all = stack_.group_sums(group);
  if (placement_.gradients.sliced) {
    const at::Tensor& memory = pooled_.scatter(group);
    if (stack_.has_fp32_sums()) {
      stack_.detach_sums(group);
      stack_.detach_grads(group);
      one.all = memory.narrow(0, 0, place.numel);
    }
  }
  // On a GPU, reduces directly into the final place. On a CPU, reduces in place, which is fastest
  // in shared memory.
  one.kept = owners(group) && placement_.gradients.sliced && !tier_ && stack_.device().is_cuda() &&
             !kept_[std::size_t(group)];
  if (one.kept) kept_[std::size_t(group)] = true;
  one.sum = one.kept ? grads(group) : own_part(one);
  if (Communicator* const ranks = owners(group))
    one.work = exchange_->sum_to_owners(*ranks, one.sum, one.all,
                                        {.purpose = Purpose::gradients, .part = group});
  scattering_.push_back(std::move(one));
  if (scattering_.size() > 1) sum_across(scattering_[scattering_.size() - 2]);
}

void ZeroShards::sum_across(Scattering& one) {
  if (!replicas_ || std::exchange(one.across, true)) return;
  exchange_->wait(one.work, stack_.device());
  one.work =
      exchange_->sum(*replicas_, one.sum, {.purpose = Purpose::gradients, .part = one.group});
}

void ZeroShards::finish(Scattering& one) {
  const at::NoGradGuard no_grad;
  sum_across(one);
  exchange_->wait(one.work, stack_.device());
  if (placement_.gradients.sliced) {
    if (!one.kept) keep(one.group, one.sum);
    if (!stack_.has_fp32_sums()) stack_.detach_grads(one.group);
    pooled_.finish(one.group);
  }
  one = {};
}

// Adds a slice of gradients to the sum of earlier micro-batches.
void ZeroShards::keep(int group, at::Tensor sum) {
  const bool first = !kept_[std::size_t(group)];
  kept_[std::size_t(group)] = true;
  if (!tier_) {
    at::Tensor mine = grads(group);
    first ? mine.copy_(sum) : mine.add_(sum);
    return;
  }
  const Tier::Run run = kept_grads(group);
  at::Tensor mine = first ? tier_->blank(run) : tier_->take(run);
  if (!first) sum.add_(mine.to(sum.device(), /*non_blocking=*/true));
  mine.copy_(sum, /*non_blocking=*/true);
  norms_[std::size_t(group)] = counted_norm(sum, stack_.units(), slice_begin(group));
  if (lane_) lane_->wait_for_device();
  tier_->give_back(run, /*changed=*/true);
}

void ZeroShards::synchronize() {
  for (auto& one : scattering_) finish(one);
  scattering_.clear();
}

void ZeroShards::begin_step() { std::fill(kept_.begin(), kept_.end(), false); }

}  // namespace echelon
