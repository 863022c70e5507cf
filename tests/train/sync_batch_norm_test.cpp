// Trainers of a module with SyncBatchNorm: ranks are threads, compared with one process in fp64.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/collective/ranks.h"
#include "tests/nn/close.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

// Biases before a batch norm have gradients that are nothing but rounding, which AdamW would turn
// into steps.
PlanOptions usual() { return tiny_options(OptimizerKind::sgd); }

struct Trained {
  at::Tensor parameters, mean, variance, batches;
  double loss = 0, early = 0, validation = 0;
};

// A module draws its first values from torch's generator, which ranks that are threads share.
void same_values(const Parameter& parameter, const at::Tensor& out) {
  Parameter drawn = parameter;
  drawn.init = Init::normal(0.5);
  random_values(7)(drawn, out);
}

std::unique_ptr<Layer> mean_square() {
  return loss_layer([](const auto& a, const auto& b) { return at::mse_loss(a, b); });
}

Trained trained(PlanOptions job, std::shared_ptr<Communicator> ranks, Recompute recompute) {
  const bool alone = !ranks;
  if (alone) {
    job.parallel = {};
    job.pipeline = {};
  }
  const UserModule low("low", {part::Linear{6, 4}, part::SyncBatchNorm{4}, part::Tanh{}}),
      high("high", {part::Linear{4, 4}, part::SyncBatchNorm{4}, part::Linear{4, 1}});
  Stack stack;
  stack.add(low.layer()).add(high.layer()).add(mean_square());
  stack.recompute(recompute);
  static const TensorDataset data = [] {  // once: torch's generator is global
    at::manual_seed(4);
    return TensorDataset(at::randn({40, 6}, at::kDouble) * 3 + 5, at::randn({40, 1}, at::kDouble));
  }();
  Trainer trainer(
      stack, data,
      {.train = job.train, .optim = job.optim, .parallel = job.parallel, .pipeline = job.pipeline},
      std::move(ranks));
  Trained seen;
  trainer.on_step([&](const StepReport& report) { seen.loss = report.loss; });
  trainer.load(same_values);
  trainer.run_until(2);
  seen.early = trainer.evaluate(data, 7);
  trainer.run();
  seen.validation = trainer.evaluate(data, data.size());
  seen.parameters = all_parameters(stack, trainer);
  if (stack.has(0)) {
    seen.mean = low.buffer("1.running_mean").clone();
    seen.variance = low.buffer("1.running_var").clone();
    seen.batches = low.buffer("1.num_batches_tracked").clone();
  }
  return seen;
}

void expect_equal(const Trained& expected, const PlanOptions& job, int world,
                  Recompute recompute = Recompute::none) {
  std::vector<Trained> seen{std::size_t(world)};
  run_ranks_well({.world = world}, [&](Group& group) {
    seen[std::size_t(group.rank())] =
        trained(job, native_communicator(group.shared_from_this()), recompute);
  });
  for (const auto& rank : seen) {
    EXPECT_NEAR(rank.loss, expected.loss, 1e-12);
    EXPECT_NEAR(rank.early, expected.early, 1e-12);
    EXPECT_NEAR(rank.validation, expected.validation, 1e-12);
    EXPECT_TRUE(close(rank.parameters, expected.parameters, 1e-12));
    if (!rank.mean.defined()) continue;
    EXPECT_TRUE(close(rank.mean, expected.mean, 1e-12));
    EXPECT_TRUE(close(rank.variance, expected.variance, 1e-12));
    EXPECT_TRUE(close(rank.batches, expected.batches, 0));
  }
}

Trained alone(const PlanOptions& job) { return trained(job, nullptr, Recompute::none); }

TEST(SyncBatchNormTraining, EqualsOneProcess) {
  at::set_num_threads(1);
  const Trained expected = alone(usual());
  for (int world = 2; world <= 5; ++world)  // 24 samples over five ranks: uneven parts
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, ZeRO {}", world, zero));
      PlanOptions job = usual();
      job.parallel.zero = zero;
      expect_equal(expected, job, world);
    }
}

// Gradients of layers above are being reduced while the ranks exchange those of batch norms.
TEST(SyncBatchNormTraining, EqualsOneProcessWithABucketForEachParameter) {
  at::set_num_threads(1);
  PlanOptions job = usual();
  job.parallel.bucket_mib = 1e-6;
  expect_equal(alone(job), job, 3);
}

// A second forward neither updates the running statistics again nor changes those it norms by.
TEST(SyncBatchNormTraining, EqualsOneProcessWhereLayersAreRecomputed) {
  at::set_num_threads(1);
  const Trained expected = alone(usual());
  for (const int zero : {0, 3}) {
    SCOPED_TRACE(fmt::format("ZeRO {}", zero));
    PlanOptions job = usual();
    job.parallel.zero = zero;
    expect_equal(expected, job, 3, Recompute::full);
  }
}

TEST(SyncBatchNormTraining, EqualsOneProcessWithStages) {
  at::set_num_threads(1);
  const Trained expected = alone(usual());
  for (const int zero : {0, 3})
    for (const int data : {2, 5}) {
      SCOPED_TRACE(fmt::format("{} data ranks, ZeRO {}", data, zero));
      PlanOptions job = usual();
      job.parallel.pipeline = 2;
      job.parallel.zero = zero;
      expect_equal(expected, job, 2 * data);
    }
}

// One rank measures the layers for pipeline.balance, and it has one sample; with those of the other
// ranks that is enough.
TEST(SyncBatchNormTraining, TrainsInStagesWithOneSampleOfARankInAMicroBatch) {
  at::set_num_threads(1);
  PlanOptions job = usual();
  job.train.batch = 4;
  job.train.micro_batches = 2;
  Trained expected;
  run_ranks_well({.world = 2}, [&](Group& group) {
    Trained one = trained(job, native_communicator(group.shared_from_this()), Recompute::none);
    if (group.rank() == 0) expected = std::move(one);
  });
  job.parallel.pipeline = 2;
  for (const auto balance : {BalanceBy::time, BalanceBy::memory}) {
    SCOPED_TRACE(name_of(balance));
    job.pipeline.balance = balance;
    expect_equal(expected, job, 4);
  }
}

// Every schedule norms a micro-batch by the same statistics, and updates the running ones in the
// same order.
TEST(SyncBatchNormTraining, IsTheSameInEveryScheduleOfMicroBatches) {
  at::set_num_threads(1);
  PlanOptions job = usual();
  job.train.micro_batches = 4;
  Trained expected;
  run_ranks_well({.world = 2}, [&](Group& group) {
    Trained one = trained(job, native_communicator(group.shared_from_this()), Recompute::none);
    if (group.rank() == 0) expected = std::move(one);
  });
  expect_equal(expected, job, 2, Recompute::full);
  job.parallel.pipeline = 2;
  for (const auto schedule :
       {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
    for (const auto recompute : {Recompute::none, Recompute::full}) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", name_of(schedule), name_of(recompute)));
      job.pipeline.schedule = schedule;
      expect_equal(expected, job, 4, recompute);
    }
}

// A frozen norm still takes its statistics from all samples; so does one in a layer without a
// backward.
TEST(SyncBatchNormTraining, EqualsOneProcessWithFrozenParameters) {
  at::set_num_threads(1);
  for (const std::string frozen : {"low.1.*", "*.1.*", "low.*"}) {
    SCOPED_TRACE(frozen);
    PlanOptions job = usual();
    job.train.freeze = {frozen};
    const Trained expected = alone(job);
    expect_equal(expected, job, 3);
    expect_equal(expected, job, 3, Recompute::full);
    job.parallel.zero = 3;
    expect_equal(expected, job, 3);
    job.parallel.pipeline = 2;
    expect_equal(expected, job, 4);
  }
}

// The time that a rank waits in a batch norm is not that of its computation: a slow rank would look
// as fast as the others.
TEST(SyncBatchNormTraining, LeavesASlowRankFewerSamples) {
  at::set_num_threads(1);
  std::string decision;
  run_ranks_well({.world = 2}, [&](Group& group) {
    const bool slow = group.rank() == 1;
    const UserModule net("net", {part::Linear{6, 4}, part::SyncBatchNorm{4}, part::Linear{4, 1}});
    Stack stack;
    stack.add(net.layer()).add(loss_layer([slow](const auto& a, const auto& b) {
      std::this_thread::sleep_for(std::chrono::milliseconds((slow ? 8 : 1) * a.size(0)));
      return at::mse_loss(a, b);
    }));
    const TensorDataset data(at::ones({24, 6}, at::kDouble), at::ones({24, 1}, at::kDouble));
    PlanOptions job = usual();
    job.train.steps = 4;
    job.parallel.shares = BatchSplit::speed;
    job.parallel.shares_every = 2;
    Trainer trainer(stack, data, {.train = job.train, .optim = job.optim, .parallel = job.parallel},
                    native_communicator(group.shared_from_this()));
    trainer.on_event([&](const Event& event) {
      if (const auto* one = std::get_if<DecisionReport>(&event); one && decision.empty())
        decision = one->text;
    });
    trainer.run();
  });
  EXPECT_TRUE(decision.starts_with("after step 2: shares of the batch [12, 12] become ["))
      << decision;
}

void train_once(const UserModule& net, const PlanOptions& job, Group& group) {
  Stack stack;
  stack.add(net.layer()).add(mean_square());
  const TensorDataset data(at::ones({24, 6}, at::kDouble), at::ones({24, 1}, at::kDouble));
  Trainer trainer(
      stack, data,
      {.train = job.train, .optim = job.optim, .parallel = job.parallel, .zero = job.zero},
      native_communicator(group.shared_from_this()));
  trainer.run();
}

TEST(SyncBatchNormTraining, LeavesAModuleThatWaitsForNoOne) {
  at::set_num_threads(1);
  run_ranks_well({.world = 2}, [](Group& group) {
    const UserModule net("net", {part::Linear{6, 4}, part::SyncBatchNorm{4}, part::Linear{4, 1}});
    train_once(net, usual(), group);
    if (group.rank() == 0) net.forward(at::randn({5, 6}, at::kDouble));
  });
}

// The layout fails when the ranks of the batch are known already.
TEST(SyncBatchNormTraining, AFailedTrainerLeavesAModuleThatWaitsForNoOne) {
  at::set_num_threads(1);
  run_ranks_well({.world = 2}, [](Group& group) {
    const UserModule net("net", {part::Linear{6, 4}, part::SyncBatchNorm{4}, part::Linear{4, 1}});
    PlanOptions job = usual();
    job.parallel.zero = 1;
    job.zero.offload = Offload::disk;
    job.zero.offload_path = "/proc/no such folder";
    EXPECT_THROW(train_once(net, job, group), Error);
    if (group.rank() == 0) net.forward(at::randn({5, 6}, at::kDouble));
  });
}

}  // namespace
}  // namespace echelon
