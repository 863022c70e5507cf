// Bytes that each rank holds and sends, by category, compared with the closed forms of ZeRO.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/train/trainer.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

const ModelOptions tiny = {
    .layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8, .tied = false};
constexpr std::uint64_t steps = 2;

// Elements of the flat buffer, computed from the sizes alone: every parameter is padded to 32, and
// a group of one layer that is sharded over N ranks is padded to 32 N.
struct Flat {
  std::uint64_t parameters = 0, elements = 0, last_group = 0;

  Flat() = default;
  Flat(const Stack& stack, int shards) {
    const auto padded = [](std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; };
    for (int layer = 0; layer < stack.size(); ++layer) {
      std::uint64_t group = 0;
      for (const auto& p : stack.parameters())
        if (p.layer == layer) {
          parameters += std::uint64_t(p.numel());
          group += padded(std::uint64_t(p.numel()), 32);
        }
      group = padded(group, 32 * std::uint64_t(shards));
      elements += group;
      last_group = group;
    }
  }
};

struct Bytes {  // per element
  Precision precision;
  std::uint64_t value, gradient, state;
};
constexpr Bytes types[] = {
    {Precision::fp32, 4, 4, 8}, {Precision::bf16, 2, 2, 12}, {Precision::fp16, 2, 2, 12}};

// With M bytes of gradients, every rank sends 2M(N-1)/N per step in data parallelism and stages 1
// and 2. In stage 3 it sends 3M(N-1)/N, less U(N-1)/N for the last group, which is kept from
// forward to backward. Stages 1 and 2 also broadcast the initial values.
std::uint64_t traffic(int stage, std::uint64_t m, std::uint64_t u, std::uint64_t n) {
  return (stage < 3 ? (2 * steps + 1) * m : steps * (3 * m - u)) / n * (n - 1);
}

struct Held {
  MemoryUse memory;
  std::uint64_t sent = 0;
  std::size_t parameters = 0, layers = 0;
};

Held trained(const TrainOptions& options, Group& group, int stage, Flat& flat) {
  Stack stack = gpt(tiny);
  const RandomTokens data(32, 8, 1);
  TrainOptions train = options;
  train.steps = steps;
  train.batch = 24;
  train.check_every = 0;
  group.ledger().clear();
  Trainer trainer(
      stack, data,
      {.train = train, .optim = {.warmup = 1}, .parallel = {.zero = stage}, .zero = {.group = 0}},
      native_communicator(group.shared_from_this()));
  trainer.run();
  flat = Flat(stack, stage == 0 ? 1 : group.size());
  Held held{trainer.memory().now(), 0, stack.parameters().size(), std::size_t(stack.size())};
  for (const auto& entry : group.ledger().entries())
    if (entry.tag == "gradients" || entry.tag == "parameters") held.sent += entry.bytes;
  return held;
}

TEST(Memory, AndTrafficOfEveryStageMatchTheClosedForms) {
  at::set_num_threads(1);
  for (const auto& type : types)
    for (const int world : {2, 3, 4, 8})
      for (int stage = 0; stage <= 3; ++stage) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, stage {}", name_of(type.precision), world, stage));
        run_ranks_well({.world = world}, [&](Group& group) {
          TrainOptions train;
          train.precision = type.precision;
          Flat flat;
          const Held held = trained(train, group, stage, flat);
          const std::uint64_t n = flat.elements, ranks = std::uint64_t(world), part = n / ranks;
          EXPECT_EQ(held.memory[MemoryKind::parameters], type.value * (stage >= 3 ? part : n));
          EXPECT_EQ(held.memory[MemoryKind::gradients], type.gradient * (stage >= 2 ? part : n));
          EXPECT_EQ(held.memory[MemoryKind::optimizer], type.state * (stage >= 1 ? part : n));
          // The total is 16 Psi and its parts, and at most 31 elements of padding per parameter and
          // 32 N - 1 per layer.
          EXPECT_EQ(type.value + type.gradient + type.state, 16U);
          EXPECT_GE(n, flat.parameters);
          EXPECT_LE(n - flat.parameters,
                    31 * held.parameters + (stage == 0 ? 0 : (32 * ranks - 1) * held.layers));
          if (stage > 0) {
            EXPECT_EQ(held.sent,
                      traffic(stage, type.value * n, type.value * flat.last_group, ranks));
          }
        });
      }
}

TEST(Memory, OfFp32SumsIsCountedAsGradients) {
  at::set_num_threads(1);
  for (const int world : {2, 3})
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("{} ranks, stage {}", world, stage));
      run_ranks_well({.world = world}, [&](Group& group) {
        TrainOptions train;
        train.precision = Precision::bf16;
        train.reduce = ReduceType::fp32;
        Flat flat;
        const Held held = trained(train, group, stage, flat);
        EXPECT_EQ(held.memory[MemoryKind::gradients],
                  stage >= 2 ? 4 * flat.elements / std::uint64_t(world) : 6 * flat.elements);
      });
    }
}

}  // namespace
}  // namespace echelon
