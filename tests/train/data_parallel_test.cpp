// Several ranks train like one process: ranks are threads, in fp64.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <atomic>
#include <cmath>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;  // sums of a dozen values in another order, over a few steps

const ModelOptions tiny = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};

struct Case {
  int micro_batches = 1;
  double bucket_mib = 0;
};

// All parameters after five steps, concatenated.
at::Tensor trained(const Case& one, std::shared_ptr<Communicator> ranks,
                   std::vector<StepReport>* reports = nullptr) {
  Stack stack = gpt(tiny);
  TrainOptions train;
  train.steps = 5;
  train.batch = 24;
  train.micro_batches = one.micro_batches;
  train.precision = Precision::fp64;
  OptimOptions optim;
  optim.warmup = 2;
  Trainer trainer(stack, tokens(),
                  {.train = train, .optim = optim, .parallel = {.bucket_mib = one.bucket_mib}},
                  std::move(ranks));
  if (reports) trainer.on_step([&](const StepReport& report) { reports->push_back(report); });
  trainer.run();
  std::vector<at::Tensor> all;
  for (const auto& parameter : stack.parameters())
    all.push_back(trainer.master(parameter).reshape({-1}).clone());
  return at::cat(all);
}

TEST(DataParallel, EqualsOneProcess) {
  at::set_num_threads(1);
  for (const int micro_batches : {1, 2})
    // Chosen by the links; one bucket per layer; one bucket for all.
    for (const double mib : {0.0, 1e-6, 100.0}) {
      const Case one{micro_batches, mib};
      std::vector<StepReport> alone;
      const at::Tensor expected = trained(one, nullptr, &alone);
      for (int world = 2; world <= 4; ++world) {
        SCOPED_TRACE(fmt::format("{} micro-batches, {} MiB, world {}", micro_batches, mib, world));
        std::vector<at::Tensor> parameters(static_cast<std::size_t>(world));
        run_ranks_well({.world = world}, [&](Group& group) {
          std::vector<StepReport> reports;
          parameters[std::size_t(group.rank())] =
              trained(one, native_communicator(group.shared_from_this()), &reports);
          ASSERT_EQ(reports.size(), alone.size());
          for (std::size_t i = 0; i < reports.size(); ++i) {
            EXPECT_NEAR(reports[i].loss, alone[i].loss, bound);
            EXPECT_NEAR(reports[i].grad_norm, alone[i].grad_norm, bound);
            EXPECT_EQ(reports[i].targets, alone[i].targets);
          }
        });
        for (const auto& one_rank : parameters) {
          ASSERT_TRUE(one_rank.defined());
          EXPECT_LT((one_rank - expected).abs().max().item<double>(), bound);
          EXPECT_TRUE(at::equal(one_rank, parameters[0])) << "all ranks have the same bits";
        }
      }
    }
}

TEST(DataParallel, SendsTheBytesOfTheClosedForm) {
  at::set_num_threads(1);
  Stack stack = gpt(tiny);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  const std::uint64_t bytes = stack.grads().nbytes();
  for (int world = 2; world <= 4; ++world)
    for (const double mib : {1e-6, 100.0}) {
      Layout layout{.world = world, .shared_memory = false};
      layout.comm.algorithm = Algorithm::ring;
      std::atomic<std::uint64_t> gradients = 0;
      run_ranks_well(layout, [&](Group& group) {
        group.ledger().clear();
        trained({.bucket_mib = mib}, native_communicator(group.shared_from_this()));
        for (const auto& entry : group.ledger().entries())
          if (entry.tag == "gradients") gradients += entry.bytes;
      });
      // 2(p-1) n over all ranks, for each of five steps.
      EXPECT_EQ(gradients, 5 * 2 * std::uint64_t(world - 1) * bytes) << world << " ranks";
    }
}

// The first of the tokens; counts how many samples are read.
class Counted : public Dataset {
 public:
  explicit Counted(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices) const override {
    most = std::max(most, indices.size());
    read += indices.size();
    return tokens().get(indices);
  }
  mutable std::size_t most = 0, read = 0;

 private:
  std::int64_t size_;
};

// A rank that validates alone would use smaller pieces the more ranks there are.
TEST(DataParallel, RanksSplitAValidation) {
  at::set_num_threads(1);
  const auto trainer_on = [](Stack& stack, std::shared_ptr<Communicator> ranks, int zero) {
    return std::make_unique<Trainer>(
        stack, tokens(),
        TrainerOptions{.train = TrainOptions{.steps = 2, .batch = 24, .precision = Precision::fp64},
                       .optim = OptimOptions{.warmup = 0},
                       .parallel = ParallelOptions{.zero = zero}},
        std::move(ranks));
  };
  Stack stack = gpt(tiny);
  const auto alone = trainer_on(stack, nullptr, 0);
  alone->run();
  const double expected = alone->evaluate(tokens(), 44);
  EXPECT_NE(thrown<InvalidArgument>([&] { alone->evaluate(tokens(), 0); }).find("is no number"),
            std::string::npos);
  EXPECT_EQ(alone->evaluate_together(tokens(), 44), expected);
  for (const int zero : {0, 1, 3})
    run_ranks_well({.world = 4}, [&](Group& group) {
      Stack mine = gpt(tiny);
      const auto trainer = trainer_on(mine, native_communicator(group.shared_from_this()), zero);
      trainer->run();
      const Counted data(50);
      EXPECT_NEAR(trainer->evaluate_together(data, 44), expected, bound) << "zero " << zero;
      EXPECT_LE(data.read, 12U);  // 6 at a time: of 44 the last rank has 6 and 2
      EXPECT_EQ(data.most, 6U);
      if (zero < 3) {
        EXPECT_NEAR(trainer->evaluate(data, 44), expected, bound);
      }
    });
}

// The mean is over the samples that were seen, even if ranks are allowed datasets of different
// sizes.
TEST(DataParallel, ValidatesDatasetsOfDifferentSizesByTheMeanOverSeenSamples) {
  at::set_num_threads(1);
  run_ranks_well({.world = 2}, [&](Group& group) {
    Stack stack = gpt(tiny);
    Trainer trainer(
        stack, tokens(),
        {.train = {.steps = 1, .batch = 24, .precision = Precision::fp64}, .optim = {.warmup = 0}},
        native_communicator(group.shared_from_this()));
    const double all = trainer.evaluate(tokens(), 12);
    // The second rank has nothing beyond the first piece, which belongs to the first rank.
    const double some = trainer.evaluate_together(Counted(group.rank() == 0 ? 24 : 12), 24);
    EXPECT_NEAR(some, all, bound);
  });
}

TEST(DataParallel, NoticesRanksThatDriftApart) {
  at::set_num_threads(1);
  tokens();
  const auto outcomes = run_outcomes({.world = 3}, [](Group& group) {
    Stack stack = gpt(tiny);
    TrainOptions train;
    train.steps = 20;
    train.batch = 24;
    train.check_every = 4;
    Trainer trainer(stack, tokens(), {.train = train, .optim = {.warmup = 2}},
                    native_communicator(group.shared_from_this()));
    trainer.on_step([&](const StepReport& report) {
      if (report.step == 6 && group.rank() == 2) at::Tensor(stack.values()).narrow(0, 5, 1).add_(1);
    });
    trainer.run();
  });
  for (const auto& one : outcomes)
    EXPECT_EQ(one.message.substr(0, 67),
              "after step 8 the parameters of rank 2 are not those of rank 0: the ");
}

// A user's module, with initial values from torch's own generator and with running statistics.
TEST(DataParallel, StartsWithRankZerosValuesAndEndsWithItsStatistics) {
  at::set_num_threads(1);
  at::manual_seed(4);
  const TensorDataset data(at::randn({40, 6}, at::kDouble), at::randn({40, 1}, at::kDouble));
  constexpr int world = 3;
  std::vector<at::Tensor> first(world), last(world), statistics(world);
  run_ranks_well({.world = world}, [&](Group& group) {
    const auto r = std::size_t(group.rank());
    const UserModule net("net", {part::Linear{6, 4}, part::BatchNorm{4}, part::Linear{4, 1}});
    Stack stack;
    stack.add(net.layer()).add(loss_layer([](const at::Tensor& a, const at::Tensor& b) {
      return at::mse_loss(a, b);
    }));
    TrainOptions train;
    train.steps = 5;
    train.batch = 12;
    train.precision = Precision::fp64;
    train.check_every = 1;
    Trainer trainer(stack, data, {.train = train, .optim = {.warmup = 1}},
                    native_communicator(group.shared_from_this()));
    first[r] = stack.values().clone();
    trainer.run();
    last[r] = stack.values().clone();
    statistics[r] = net.buffer("1.running_mean").clone();
  });
  EXPECT_FALSE(at::equal(first[0], first[1])) << "or there would be nothing to show";
  for (int r = 1; r < world; ++r) {
    EXPECT_TRUE(at::equal(last[0], last[std::size_t(r)]));
    EXPECT_TRUE(at::equal(statistics[0], statistics[std::size_t(r)]));
  }
  EXPECT_GT(statistics[0].abs().max().item<double>(), 0);
}

// Ranks begin with different initial values, and the first run has not made them equal yet.
TEST(DataParallel, MeasuresRankZerosValuesBeforeTheFirstRun) {
  at::set_num_threads(1);
  at::manual_seed(4);
  const TensorDataset data(at::randn({40, 6}, at::kDouble), at::randn({40, 1}, at::kDouble));
  constexpr int world = 2;
  std::vector<double> own(world), measured(world), again(world);
  std::vector<at::Tensor> values(world);
  run_ranks_well({.world = world}, [&](Group& group) {
    const auto r = std::size_t(group.rank());
    const UserModule net("net", {part::Linear{6, 4}, part::Tanh{}, part::Linear{4, 1}});
    Stack stack;
    stack.add(net.layer()).add(loss_layer([](const at::Tensor& a, const at::Tensor& b) {
      return at::mse_loss(a, b);
    }));
    Trainer trainer(
        stack, data,
        {.train = {.steps = 2, .batch = 12, .precision = Precision::fp64}, .optim = {.warmup = 1}},
        native_communicator(group.shared_from_this()));
    own[r] = trainer.evaluate(data, 40);  // each rank evaluates alone
    measured[r] = trainer.measure(data, 40).loss;
    again[r] = trainer.measure(data, 40).loss;
    values[r] = stack.values().clone();
    trainer.run();
  });
  EXPECT_GT(std::abs(own[0] - own[1]), 1e-6) << "or there would be nothing to show";
  for (const double loss : measured) EXPECT_NEAR(loss, own[0], bound);
  EXPECT_EQ(again, measured);
  EXPECT_TRUE(at::equal(values[0], values[1]));
}

}  // namespace
}  // namespace echelon
