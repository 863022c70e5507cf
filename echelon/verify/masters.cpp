#include "echelon/verify/masters.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "echelon/base/random.h"
#include "echelon/models/family.h"
#include "echelon/optim/schedule.h"
#include "echelon/plan/compute_type.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

using Fill = std::function<void(const Parameter&, at::Tensor)>;

// A flat buffer with the segments of the stack's trainable units.
at::Tensor flat(Stack& stack, at::ScalarType type, const Fill& fill) {
  const auto& last = stack.groups().back();
  at::Tensor all = at::zeros({last.begin + last.numel}, type);
  for (const auto& unit : stack.units())
    if (unit.trainable)
      for (const auto& segment : unit.segments)
        fill(*stack.find(segment.name),
             all.narrow(0, unit.begin + segment.offset, segment.numel).view(segment.shape));
  return all;
}

at::Tensor gradients(Stack& stack, std::int64_t update, double size) {
  return flat(stack, stack.type(), [&](const Parameter& parameter, at::Tensor out) {
    at::Tensor noise = at::empty(parameter.shape, at::kFloat);
    fill_normal(derive_key(std::uint64_t(update), parameter.name), 0,
                std::span(noise.data_ptr<float>(), std::size_t(noise.numel())), 0, size);
    out.copy_(noise);
  });
}

}  // namespace

MastersCheck check_masters(std::shared_ptr<Communicator> ranks, const JobOptions& options,
                           std::int64_t updates) {
  const at::NoGradGuard no_grad;
  const auto type = compute_type(options.train);
  const Placement placement = placement_of(options.parallel.zero, options.zero, ranks->size(),
                                           /*replicas=*/false, /*fp32_sums=*/false);
  const ValueSource first = random_values(std::uint64_t(options.train.seed));
  MemoryAccount account, aside;
  const MemoryCounting counting(account);
  Stack stack = family_of(options.model).build(options.model);
  stack.allocate(at::kCPU, type, Gradients::yes,
                 ZeroShards::allocation(placement, ranks, at::kCPU, /*smallest_group=*/1));
  std::optional<LossScale::Setup> scaling;
  if (type == at::kHalf) scaling = {options.train.loss_scale, options.train.scale_growth};
  ZeroShards shards(stack, {ranks, nullptr}, placement);
  ZeroUpdate owner(stack, shards, options.optim, /*tier=*/nullptr, /*piece=*/0, scaling);
  owner.load(first);

  // An account of its own, since not to count at all would leave torch with blocks that it does not
  // know when owners free them later, and warns of.
  const MemoryCounting not_counting(aside);
  const at::Tensor master = flat(stack, master_type(type), first);
  SliceUpdate whole({{master, ranges_within(stack.units(), 0, master.numel(), type)}}, at::kCPU,
                    type, options.optim, parameters_of(stack.units()), {}, scaling);
  const at::Tensor loss = at::zeros({}, at::kDouble);
  const at::Tensor turn = at::arange(master.numel()).remainder(ranks->size());
  for (std::int64_t i = 0; i < updates; ++i) {
    const double carried = scaling ? whole.loss_scale()->state().scale : 1;
    at::Tensor all = gradients(stack, i, 0.01 * carried);
    if (scaling && i == 1)
      all[master.numel() / ranks->size() / 2 * ranks->size() + ranks->size() - 1].fill_(
          std::numeric_limits<double>::infinity());
    // Every element comes from one rank, so the sum over ranks is exact.
    const at::Tensor mine = all.masked_fill(turn != ranks->rank(), 0);
    shards.wait_for_values();
    shards.begin_step();
    for (int g = 0; g < int(stack.groups().size()); ++g) {
      const auto& group = stack.groups()[std::size_t(g)];
      if (placement.gradients.sliced) shards.alloc_grads(g);
      for (const auto& parameter : stack.parameters())
        stack.find(parameter.name)->grad_written = true;
      stack.group_grads(g).copy_(mine.narrow(0, group.begin, group.numel));
      shards.scatter(g);
    }
    shards.synchronize();
    const double rate = rate_at(options.optim, i, updates);
    owner.rate().fill_(rate);
    whole.rate().fill_(rate);
    owner.apply(loss);
    whole.apply({all}, owner.norm(), loss);
  }
  shards.wait_for_values();

  MastersCheck check;
  check.memory = account.now();
  for (const auto& group : stack.groups())
    check.groups.push_back(std::uint64_t(group.numel) * at::elementSize(type));
  const auto theirs = whole.state();
  const StateIndex index(owner);
  for (std::size_t kind = 0; kind < theirs.size(); ++kind)
    for (const auto& parameter : stack.parameters()) {
      const at::Tensor there = theirs[kind].flat.narrow(0, parameter.begin, parameter.numel());
      const double difference =
          (index.whole(theirs[kind].name, parameter).view({-1}) - there).abs().max().item<double>();
      // NaN must not count as small.
      check.difference = difference <= check.difference ? check.difference
                         : std::isnan(difference)       ? std::numeric_limits<double>::infinity()
                                                        : difference;
    }
  if (owner.updates() != whole.updates() || owner.updates() != double(updates - (scaling ? 1 : 0)))
    check.difference = std::numeric_limits<double>::infinity();
  return check;
}

}  // namespace echelon
