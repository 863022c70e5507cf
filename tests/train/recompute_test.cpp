// Training with recompute and dropout: the same bits as without recompute, and the same masks
// however a batch is cut.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <set>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;  // sums of a few dozen values in another order, over a few steps

struct Case {
  double dropout = 0;
  Recompute recompute = Recompute::none;
  int micro_batches = 1;
  Precision precision = Precision::fp64;
  int stage = 0;
  std::vector<std::int64_t> shares = {};
  std::int64_t seed = 1;
};

TrainOptions train_of(const Case& one) {
  TrainOptions train;
  train.steps = 5;
  train.batch = 24;
  train.micro_batches = one.micro_batches;
  train.precision = one.precision;
  train.seed = one.seed;
  return train;
}

OptimOptions optim() {
  OptimOptions optim;
  optim.warmup = 2;
  return optim;
}

Stack model(const Case& one) {
  return gpt({.layers = 2,
              .width = 16,
              .heads = 2,
              .vocab = 32,
              .context = 8,
              .dropout = one.dropout,
              .recompute = one.recompute});
}

struct Result {
  at::Tensor parameters;
  std::vector<double> losses;
  double validation = 0;
};

Result trained(const Case& one, std::shared_ptr<Communicator> ranks = nullptr) {
  Stack stack = model(one);
  Result result;
  Trainer trainer(stack, tokens(),
                  {.train = train_of(one),
                   .optim = optim(),
                   .parallel = {.zero = one.stage},
                   .zero = {.group = 0}},
                  ranks);
  if (ranks && !one.shares.empty()) trainer.split_batch(one.shares);
  trainer.on_step([&](const StepReport& report) { result.losses.push_back(report.loss); });
  trainer.run();
  result.parameters = all_parameters(stack, trainer);
  result.validation = trainer.evaluate(tokens(), 20);
  return result;
}

TEST(Recompute, TrainsTheSameBits) {
  at::set_num_threads(2);
  for (const double dropout : {0.0, 0.1})
    for (const int micro_batches : {1, 3}) {
      Case one{.dropout = dropout, .micro_batches = micro_batches, .precision = Precision::fp32};
      const Result none = trained(one);
      for (const auto recompute : {Recompute::selective, Recompute::full}) {
        one.recompute = recompute;
        const Result other = trained(one);
        const std::string when = fmt::format("{}, dropout {}, {} micro-batches", name_of(recompute),
                                             dropout, micro_batches);
        EXPECT_EQ(other.losses, none.losses) << when;
        EXPECT_TRUE(at::equal(other.parameters, none.parameters)) << when;
      }
    }
}

TEST(Dropout, ChangesTheLossInTrainingAndNotInValidation) {
  at::set_num_threads(1);
  const Result without = trained({}), with = trained({.dropout = 0.3}),
               other_seed = trained({.dropout = 0.3, .seed = 2});
  EXPECT_NE(with.losses, without.losses);
  EXPECT_NE(with.losses, other_seed.losses);
  Stack plain = model({}), dropping = model({.dropout = 0.3});
  Trainer a(plain, tokens(), {.train = train_of({}), .optim = optim()}),
      b(dropping, tokens(), {.train = train_of({}), .optim = optim()});
  EXPECT_EQ(a.evaluate(tokens(), 20), b.evaluate(tokens(), 20));
}

// All samples are equal and parameters never change: only masks can make two losses differ.
TEST(Dropout, DrawsNewMasksInEveryStepAndForEverySeed) {
  at::set_num_threads(1);
  const at::Tensor text = at::randint(32, {1, 9}).expand({60, 9});
  const TensorDataset alike(text.narrow(1, 0, 8).contiguous(), text.narrow(1, 1, 8).contiguous());
  const auto losses = [&](const Case& one) {
    Stack stack = model(one);
    OptimOptions still = optim();
    still.rate = 0;
    Trainer trainer(stack, alike, {.train = train_of(one), .optim = still});
    trainer.load(random_values(1));
    std::set<double> seen;
    trainer.on_step([&](const StepReport& report) { seen.insert(report.loss); });
    trainer.run();
    return seen;
  };
  EXPECT_EQ(losses({}).size(), 1U);
  EXPECT_EQ(losses({}), losses({.seed = 2}));
  std::set<double> all = losses({.dropout = 0.3});
  EXPECT_EQ(all, losses({.dropout = 0.3}));
  all.merge(losses({.dropout = 0.3, .seed = 2}));
  EXPECT_EQ(all.size(), 10U) << "five steps of two seeds";
}

void expect_near(const Result& seen, const Result& expected, const std::string& when) {
  EXPECT_LT((seen.parameters - expected.parameters).abs().max().item<double>(), bound) << when;
  ASSERT_EQ(seen.losses.size(), expected.losses.size()) << when;
  for (std::size_t i = 0; i < seen.losses.size(); ++i)
    EXPECT_NEAR(seen.losses[i], expected.losses[i], bound) << when << ", step " << i + 1;
}

TEST(Dropout, TrainsTheSameHoweverABatchIsCut) {
  at::set_num_threads(1);
  const Result whole = trained({.dropout = 0.1});
  for (const int micro_batches : {2, 4, 24})
    expect_near(trained({.dropout = 0.1, .micro_batches = micro_batches}), whole,
                fmt::format("{} micro-batches", micro_batches));
}

TEST(Dropout, TrainsTheSameOnAnyRanks) {
  at::set_num_threads(1);
  const Result whole = trained({.dropout = 0.1});
  const auto expect_same = [&](const Case& one, int world) {
    run_ranks_well({.world = world}, [&](Group& group) {
      expect_near(trained(one, native_communicator(group.shared_from_this())), whole,
                  fmt::format("stage {}, world {}, {}, {} micro-batches", one.stage, world,
                              name_of(one.recompute), one.micro_batches));
    });
  };
  for (int stage = 0; stage <= 3; ++stage) {
    expect_same({.dropout = 0.1, .stage = stage}, 2);
    expect_same({.dropout = 0.1, .recompute = Recompute::full, .micro_batches = 2, .stage = stage},
                3);
  }
  expect_same({.dropout = 0.1, .recompute = Recompute::selective, .shares = {5, 19}}, 2);
  expect_same({.dropout = 0.1, .micro_batches = 2, .shares = {11, 3, 10}}, 3);
}

TEST(Dropout, ContinuesBitForBitFromASavedState) {
  at::set_num_threads(1);
  ScratchFolder folder;
  const Case one{.dropout = 0.2, .recompute = Recompute::full, .precision = Precision::fp32};
  const Result whole = trained(one);
  Stack first = model(one), second = model(one);
  Trainer begins(first, tokens(), {.train = train_of(one), .optim = optim()}),
      ends(second, tokens(), {.train = train_of(one), .optim = optim()});
  begins.run_until(2);
  begins.save(folder / "state");
  ends.restore(folder / "state");
  ends.run();
  EXPECT_TRUE(at::equal(all_parameters(second, ends), whole.parameters));
}

// A user's layers, with running statistics and torch's own dropout.
TEST(Recompute, TrainsAUsersModulesToTheSameBits) {
  at::set_num_threads(1);
  at::manual_seed(8);
  const TensorDataset data(at::randn({60, 6}), at::randn({60, 3}));
  const auto run = [&](Recompute recompute, int micro_batches) {
    at::manual_seed(9);
    Stack stack;
    for (const char* name : {"a", "b"})
      stack.add(
          UserModule(name, {part::Linear{6, 6}, part::BatchNorm{6}, part::Dropout{0.2}}).layer());
    stack.add(UserModule("out", {part::Linear{6, 3}}).layer());
    stack.add(loss_layer(
        [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); }));
    stack.recompute(recompute);
    Trainer trainer(
        stack, data,
        {.train = train_of({.micro_batches = micro_batches, .precision = Precision::fp32}),
         .optim = optim()});
    trainer.run();
    std::vector<at::Tensor> all = {all_parameters(stack, trainer)};
    for (const auto& [name, buffer] : stack.buffers())
      all.push_back(buffer.to(at::kFloat).reshape({-1}).clone());
    return at::cat(all);
  };
  for (const int micro_batches : {1, 3})
    for (const Recompute recompute : {Recompute::selective, Recompute::full})
      EXPECT_TRUE(at::equal(run(recompute, micro_batches), run(Recompute::none, micro_batches)))
          << micro_batches << " micro-batches";
}

}  // namespace
}  // namespace echelon
