#include "echelon/parallel/zero/group_memory.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "echelon/nn/loss_layer.h"
#include "echelon/parallel/zero/pooled_bytes.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/step/executor.h"
#include "echelon/step/walk.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

struct Piece {
  int number = -1;  // in the order of allocation
  std::int64_t elements = 0;
  at::ScalarType type = at::kFloat;
  std::int64_t numel() const { return elements; }
  at::ScalarType scalar_type() const { return type; }
};

struct Pool {
  explicit Pool(const std::vector<std::int64_t>& numels, bool fp32_sums = false)
      : memory(numels, at::kBFloat16, fp32_sums, [this](std::int64_t numel, at::ScalarType type) {
          return Piece{made++, numel, type};
        }) {}
  int made = 0;
  GroupMemory<Piece> memory;
};

TEST(GroupMemory, IsReusedByTheNextGroupThatFits) {
  Pool pool({10, 8, 12});
  EXPECT_EQ(pool.memory.gather(0).number, 0);
  EXPECT_EQ(pool.memory.gather(1).number, 1);
  pool.memory.reshard(0);
  pool.memory.reshard(1);
  EXPECT_EQ(pool.memory.alloc_grads(1).number, 1) << "the best fit";
  EXPECT_EQ(pool.memory.gather(2).number, 2) << "nothing else is large enough";
  EXPECT_EQ(pool.memory.gather(1).number, 0);
}

TEST(GroupMemory, KeepsGradientsUntilTheirScatterIsFinished) {
  Pool pool({10, 10, 10, 10});
  for (const int group : {0, 1}) {
    EXPECT_TRUE(pool.memory.due(group).empty());
    EXPECT_EQ(pool.memory.alloc_grads(group).number, group);
    EXPECT_EQ(pool.memory.scatter(group).number, group);
  }
  EXPECT_EQ(pool.memory.due(2), std::vector<int>{0}) << "two are under way";
  EXPECT_EQ(pool.memory.due(1), (std::vector<int>{0, 1})) << "and the group's own";
  pool.memory.finish(0);
  EXPECT_TRUE(pool.memory.due(2).empty());
  EXPECT_EQ(pool.memory.alloc_grads(2).number, 0);
}

TEST(GroupMemory, ScattersSumsInsteadOfGradients) {
  Pool pool({10, 10}, /*fp32_sums=*/true);
  EXPECT_EQ(pool.memory.alloc_grads(0).type, at::kBFloat16);
  const int sums = pool.memory.widen(0).number;
  EXPECT_EQ(pool.memory.widen(0).number, sums) << "they are kept";
  const Piece scattered = pool.memory.scatter(0);
  EXPECT_EQ(scattered.number, sums);
  EXPECT_EQ(scattered.type, at::kFloat);
  EXPECT_EQ(pool.memory.alloc_grads(1).number, 0) << "the gradients went back at once";
  EXPECT_EQ(pool.memory.scatter(1).type, at::kFloat) << "widened if that was not done";
  EXPECT_EQ(pool.made, 3);
}

// Groups of equal size share all memory: the pool holds as much as values and gradients ever hold
// at once.
TEST(GroupMemory, TakesWhatTheWalkHoldsIfGroupsAreEqual) {
  Stack stack;
  const int layers = 6;
  for (int l = 0; l < layers; ++l)
    stack.add(UserModule("part" + std::to_string(l), {part::Linear{8, 8}}).layer());
  stack.add(loss_layer([](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  }));
  Stack::Allocation allocation;
  allocation.shards = 2;
  allocation.smallest = 1;
  stack.lay_out(allocation);
  ASSERT_EQ(stack.groups().size(), std::size_t(layers));
  for (int stage = 2; stage <= 3; ++stage)
    for (const std::int64_t ahead : {0, 2, 3, 9})
      for (const Scatter scatter : {Scatter::micro_batch, Scatter::step}) {
        const Placement placement = placement_of(stage, {}, 2, false, false);
        StepShape shape = step_shape(stack, 2, {});
        const auto bytes = describe_groups(shape, stack, placement, at::kFloat);
        const Table table =
            with_shards(one_process(shape), shape, bytes, ahead * bytes[0], scatter);
        StepCosts costs;
        for (const std::int64_t all : bytes)
          costs.groups.push_back({.values = stage == 3 ? all : 0, .gradients = all});
        std::int64_t held = 0;
        walk(table, costs, [&](int, std::size_t, const TimedAction&, const RankCosts& so_far) {
          held = std::max(held, so_far.values.now + so_far.gradients.now);
        });
        EXPECT_EQ(pooled_bytes(table, stack, placement, at::kFloat, false), std::uint64_t(held))
            << "stage " << stage << ", " << ahead << " ahead";
      }
}

}  // namespace
}  // namespace echelon
