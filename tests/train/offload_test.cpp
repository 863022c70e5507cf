// State offloaded to host memory or disk trains to the same bits as state that stays with the
// model.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/parallel/zero/tier.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

struct Case {
  int stage = 3;
  Offload offload = Offload::none;
  Precision precision = Precision::fp32;
  OptimizerKind optimizer = OptimizerKind::adamw;
  ShardOver shard = ShardOver::all;
  int micro_batches = 1;
  int world = 2, hosts = 1;
  ReduceType reduce = ReduceType::automatic;
};

ZeroOptions zero_of(const Case& one, const ScratchFolder& folder) {
  ZeroOptions zero;
  zero.group = 0;
  zero.piece = 0.02;  // a slice has several pieces
  zero.offload = one.offload;
  zero.shard = one.shard;
  if (one.offload == Offload::disk) zero.offload_path = folder.path().string();
  return zero;
}

TrainOptions train_of(const Case& one) {
  TrainOptions train;
  train.steps = 4;
  train.batch = 8;
  train.micro_batches = one.micro_batches;
  train.precision = one.precision;
  train.loss_scale = 1024;
  train.reduce = one.reduce;
  return train;
}

OptimOptions optim_of(const Case& one) {
  OptimOptions optim;
  optim.name = one.optimizer;
  optim.warmup = 1;
  if (one.optimizer == OptimizerKind::lars) optim.rate = 5;
  return optim;
}

Stack model() { return gpt({.layers = 2, .width = 64, .heads = 2, .vocab = 64, .context = 16}); }

// Parameters of rank 0. With `saved`: after a state was written there and read by another trainer.
at::Tensor trained(const Case& one, const std::filesystem::path& saved = {},
                   Offload read_by = Offload::none) {
  at::set_num_threads(1);
  const RandomTokens data(64, 16, 1);
  const ScratchFolder folder;
  at::Tensor result;
  run_ranks_well({.world = one.world, .hosts = one.hosts}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    Stack stack = model();
    {
      Trainer trainer(stack, data,
                      {.train = train_of(one),
                       .optim = optim_of(one),
                       .parallel = {.zero = one.stage},
                       .zero = zero_of(one, folder)},
                      ranks);
      trainer.run_until(saved.empty() ? 4 : 2);
      if (saved.empty()) {
        const at::Tensor all = all_parameters(stack, trainer);
        if (ranks->rank() == 0) result = all;
        return;
      }
      trainer.save(saved);
      ranks->barrier().wait();
    }
    Case next = one;
    next.offload = read_by;
    Stack again = model();
    Trainer trainer(again, data,
                    {.train = train_of(next),
                     .optim = optim_of(next),
                     .parallel = {.zero = one.stage},
                     .zero = zero_of(next, folder)},
                    ranks);
    trainer.restore(saved);
    trainer.run();
    const at::Tensor all = all_parameters(again, trainer);
    if (ranks->rank() == 0) result = all;
  });
  EXPECT_TRUE(folder.names().empty()) << "a file was left behind";
  return result;
}

class OffloadTo : public testing::TestWithParam<int> {};

TEST_P(OffloadTo, TrainsToTheSameBits) {
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16})
    for (const int micro_batches : {1, 2}) {
      Case one{.stage = GetParam(), .precision = precision, .micro_batches = micro_batches};
      const at::Tensor expected = trained(one);
      for (const auto tier : {Offload::host, Offload::disk}) {
        one.offload = tier;
        EXPECT_TRUE(at::equal(trained(one), expected))
            << tier << ", " << precision << ", " << micro_batches << " micro-batches";
      }
    }
}

TEST_P(OffloadTo, TrainsToTheSameBitsWithSgd) {
  Case one{.stage = GetParam(), .optimizer = OptimizerKind::sgd, .world = 3};
  const at::Tensor expected = trained(one);
  one.offload = Offload::disk;
  EXPECT_TRUE(at::equal(trained(one), expected));
}

// The norm of a parameter is summed piece by piece, so it is rounded in another order.
TEST_P(OffloadTo, TrainsToRoundingWithOptimisersOfWholeParameters) {
  for (const auto optimizer : {OptimizerKind::lars, OptimizerKind::lamb}) {
    Case one{.stage = GetParam(), .optimizer = optimizer, .world = 3};
    const at::Tensor expected = trained(one);
    one.offload = Offload::disk;
    EXPECT_LT((trained(one) - expected).abs().max().item<double>(), 1e-6) << optimizer;
  }
}

TEST_P(OffloadTo, ContinuesFromAStateThatAnotherTierWrote) {
  const ScratchFolder folder;
  Case one{.stage = GetParam(), .precision = Precision::bf16};
  const at::Tensor expected = trained(one);
  one.offload = Offload::disk;
  EXPECT_TRUE(at::equal(trained(one, folder / "state", Offload::none), expected));
  one.offload = Offload::none;
  EXPECT_TRUE(at::equal(trained(one, folder / "state", Offload::disk), expected));
  EXPECT_TRUE(at::equal(trained(one, folder / "state", Offload::host), expected));
}

INSTANTIATE_TEST_SUITE_P(Stages, OffloadTo, testing::Values(1, 2, 3));

// Every host has a copy of everything: sums are rounded in another order.
TEST(Hybrid, EqualsShardingOverAllRanks) {
  for (int stage = 1; stage <= 3; ++stage) {
    Case one{
        .stage = stage, .precision = Precision::fp64, .micro_batches = 2, .world = 4, .hosts = 2};
    const at::Tensor expected = trained(one);
    one.shard = ShardOver::host;
    EXPECT_LT((trained(one) - expected).abs().max().item<double>(), 1e-12) << "stage " << stage;
  }
}

// Sums of bf16 gradients in fp32, in another order: their last bits differ, and sometimes also the
// bf16 value that a step computes with.
TEST(Hybrid, SumsInFp32AcrossHosts) {
  for (int stage = 1; stage <= 3; ++stage) {
    Case one{.stage = stage,
             .precision = Precision::bf16,
             .optimizer = OptimizerKind::sgd,
             .micro_batches = 2,
             .world = 4,
             .hosts = 2,
             .reduce = ReduceType::fp32};
    const at::Tensor expected = trained(one);
    one.shard = ShardOver::host;
    EXPECT_LT((trained(one) - expected).abs().max().item<double>(), 1e-6) << "stage " << stage;
  }
}

TEST(Hybrid, NeedsEquallyManyRanksOnEveryHost) {
  run_ranks_well({.world = 3, .hosts = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    EXPECT_EQ(thrown<InvalidArgument>([&] { owners_of(ranks, true); }).substr(0, 53),
              "zero.shard=host needs as many ranks on every host; th");
  });
}

ByteMemory ordinary() {
  return [](std::int64_t bytes, bool) { return at::zeros({bytes}, at::kByte); };
}

std::unique_ptr<Tier> tier_in(const std::filesystem::path& folder) {
  return disk_tier(folder.string(), 1, 2,
                   {{"master", at::kFloat, MemoryKind::optimizer, false},
                    {"value", at::kBFloat16, MemoryKind::parameters, true}},
                   {10000, 96}, ordinary());
}

TEST(DiskTier, ReadsBackWhatWasWritten) {
  const ScratchFolder folder;
  const auto tier = tier_in(folder.path());
  const Tier::Run whole{0, 0, 0, 10000}, first{0, 0, 0, 4096}, rest{0, 0, 4096, 5904},
      other{1, 1, 0, 96};
  tier->take(whole).copy_(at::arange(10000, at::kFloat));
  tier->give_back(whole, true);
  tier->blank(other).fill_(7);
  tier->give_back(other, true);
  tier->want(rest);
  EXPECT_TRUE(at::equal(tier->take(first), at::arange(4096, at::kFloat)));
  tier->take(first).fill_(-1);
  tier->give_back(first, true);
  EXPECT_TRUE(at::equal(tier->take(rest), at::arange(4096, 10000, at::kFloat)));
  tier->give_back(rest, false);
  const at::Tensor all = tier->take(whole);
  EXPECT_EQ(all[0].item<float>(), -1);
  EXPECT_EQ(all[4095].item<float>(), -1);
  EXPECT_EQ(all[4096].item<float>(), 4096);
  tier->give_back(whole, false);
  EXPECT_EQ(tier->take(other)[95].item<float>(), 7);
}

// The file that a process leaves if it is killed now.
std::string after_a_kill(const std::function<void(Tier&)>& before) {
  const ScratchFolder folder, copy;
  const std::string name = "echelon-rank-1.slices";
  {
    const auto tier = tier_in(folder.path());
    EXPECT_EQ(tier->left_behind(), "");
    before(*tier);
    std::filesystem::copy_file(folder / name, copy / name);
  }
  EXPECT_TRUE(folder.names().empty());
  const auto next = tier_in(copy.path());
  const Tier::Run run{0, 0, 0, 10000};
  EXPECT_EQ(next->take(run).abs().max().item<float>(), 0) << "what was left was taken for good";
  return next->left_behind();
}

TEST(DiskTier, ReportsWhatAKilledProcessLeft) {
  const Tier::Run run{0, 0, 0, 10000};
  const auto write = [&](Tier& tier) {
    tier.take(run).fill_(5);
    tier.give_back(run, true);
  };
  EXPECT_NE(after_a_kill([&](Tier& tier) {
              tier.begin_update(6);
              write(tier);
              tier.end_update(7);
            }).find("rank 1 of 2, after update 7: it was whole"),
            std::string::npos);
  EXPECT_NE(after_a_kill([&](Tier& tier) {
              tier.begin_update(7);
              write(tier);
            }).find("on its way from update 7 to 8"),
            std::string::npos);
}

TEST(DiskTier, ReportsADamagedFileAsLost) {
  const ScratchFolder folder, copy;
  const std::string name = "echelon-rank-1.slices";
  {
    const auto tier = tier_in(folder.path());
    tier->end_update(7);
    std::filesystem::copy_file(folder / name, copy / name);
  }
  {
    std::fstream file(copy / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(60);
    file.put('x');
  }
  EXPECT_NE(tier_in(copy.path())->left_behind().find("its first block is damaged"),
            std::string::npos);
}

TEST(DiskTier, IsRejectedIfTheDiskIsTooFull) {
  const ScratchFolder folder;
  const auto huge = [&] {
    disk_tier(folder.path().string(), 0, 1, {{"master", at::kFloat, MemoryKind::optimizer, false}},
              {std::int64_t{1} << 56}, ordinary());
  };
  EXPECT_NE(thrown<InvalidArgument>(huge).find("give a folder with more room"), std::string::npos);
  EXPECT_NE(thrown<InvalidArgument>([&] { tier_in(folder / "none"); }).find("cannot be written"),
            std::string::npos);
}

}  // namespace
}  // namespace echelon
