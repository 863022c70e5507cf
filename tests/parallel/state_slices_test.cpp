// Whatever the placement, the slices of all owners tile every parameter exactly once, and values
// that are written can be read back.
#include "echelon/optim/state_slices.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/placement.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_update.h"
#include "tests/collective/ranks.h"
#include "tests/nn/holder.h"

namespace echelon {
namespace {

// By kind and parameter: how many owners each element has.
using Owned = std::map<std::pair<std::string, std::string>, std::vector<int>>;

void count(const Update& update, Owned& owned) {
  for (const auto& slice : update.slices()) {
    auto& elements = owned[{slice.kind, slice.parameter->name}];
    elements.resize(std::size_t(slice.parameter->numel()));
    for (auto i = slice.begin; i < slice.begin + slice.numel; ++i) ++elements[std::size_t(i)];
  }
}

void expect_each_once(const Owned& owned, const Stack& stack, std::size_t kinds) {
  EXPECT_EQ(owned.size(), stack.parameters().size() * kinds);
  for (const auto& [of, elements] : owned) {
    EXPECT_EQ(elements.size(), std::size_t(stack.find(of.second)->numel())) << of.second;
    for (const int owners : elements) ASSERT_EQ(owners, 1) << of.first << " of " << of.second;
  }
}

Stack odd_stack() {
  return stack_of({{{"a", {70, 9}, Init::normal(1)}, {"b", {9}, Init::ones(), false}},
                   {{"c", {31, 5}, Init::normal(1)}, {"d", {1}, Init::ones(), false}}});
}

TEST(StateSlices, OfOneOwnerAreWholeParameters) {
  Stack stack = odd_stack();
  stack.allocate(at::kCPU, at::kBFloat16, Gradients::yes);
  MasterUpdate update(stack, {});
  update.load(random_values(1));
  Owned owned;
  count(update, owned);
  expect_each_once(owned, stack, 3);
  EXPECT_EQ(update.kinds(), (std::vector<std::string>{"master", "exp_avg", "exp_avg_sq"}));
}

TEST(StateSlices, OfAllOwnersTileEveryParameterAndCanBeReadBack) {
  for (const int world : {1, 2, 3, 5})
    for (int stage = 1; stage <= 3; ++stage)
      for (const bool offload : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, stage {}, offload {}", world, stage, offload));
        Owned owned;
        std::mutex mutex;
        run_ranks_well({.world = world}, [&](Group& group) {
          const auto ranks = native_communicator(group.shared_from_this());
          ZeroOptions zero;
          if (offload) zero.offload = Offload::host;
          const Placement placement = placement_of(stage, zero, world, false, false);
          Stack stack = odd_stack();
          stack.allocate(at::kCPU, at::kBFloat16, Gradients::yes,
                         ZeroShards::allocation(placement, ranks, at::kCPU, /*smallest_group=*/1));
          std::unique_ptr<Tier> tier;
          if (offload) {
            std::vector<std::int64_t> numels;
            for (const auto& one : stack.groups()) numels.push_back(one.numel / world);
            tier =
                host_tier(ZeroUpdate::arrays({}, at::kBFloat16, at::kBFloat16, placement, at::kCPU),
                          numels, [&](std::int64_t bytes, bool) {
                            return ranks->allocate({bytes}, at::kByte).zero_();
                          });
          }
          ZeroShards shards(stack, {ranks, nullptr}, placement, tier.get());
          ZeroUpdate update(stack, shards, {}, tier.get(), Tier::grain);
          update.load(random_values(1));
          {
            const std::lock_guard lock(mutex);
            count(update, owned);
          }
          const StateIndex index(update);
          for (const auto& kind : update.kinds())
            for (const auto& parameter : stack.parameters()) {
              const auto counts = update.owned_by(parameter);
              EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}),
                        std::size_t(parameter.numel()));
              // The same on every rank, and different from the previous values.
              at::Tensor values = at::randn(parameter.shape);
              ranks->broadcast(values, 0).wait();
              index.put(kind, parameter, values);
              EXPECT_TRUE(at::equal(index.whole(kind, parameter), values))
                  << kind << " of " << parameter.name;
            }
          update.publish();
          shards.wait_for_values();
        });
        Stack stack = odd_stack();
        expect_each_once(owned, stack, 3);
      }
}

}  // namespace
}  // namespace echelon
