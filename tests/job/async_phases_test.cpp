// Ranks with asynchronous phases: as threads, with real servers.
#include "echelon/job/async_phases.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <limits>

#include "echelon/nn/loss_layer.h"
#include "tests/base/scratch_folder.h"
#include "tests/collective/ranks.h"
#include "tests/job/replay.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

// A line with noise. From some moment on it may be another one.
class Line : public Dataset {
 public:
  Line() {
    at::manual_seed(2);
    inputs_ = at::randn({200, 8}, at::kDouble);
    noise_ = at::randn({200, 1}, at::kDouble);
  }
  std::int64_t size() const override { return 200; }
  Batch get(std::span<const std::int64_t> indices) const override {
    const at::Tensor rows = at::tensor(at::IntArrayRef(indices.data(), indices.size()));
    const at::Tensor input = inputs_.index_select(0, rows);
    return {input, input.sum(1, true) * factor.load() + 0.1 * noise_.index_select(0, rows)};
  }
  std::atomic<double> factor = 1;

 private:
  at::Tensor inputs_, noise_;
};

Stack line_model() {
  const UserModule body("body", {part::Linear{8, 1}});
  {
    const at::NoGradGuard no_grad;  // torch's generator is shared
    body.parameters().at(0).fill_(0.25);
    body.parameters().at(1).fill_(0.5);
  }
  Stack stack;
  stack.add(body.layer()).add(loss_layer([](const at::Tensor& a, const at::Tensor& b) {
    return at::mse_loss(a, b);
  }));
  return stack;
}

JobOptions slowly_learning() {
  JobOptions options;
  options.train.steps = 120;
  options.train.batch = 12;
  options.train.precision = Precision::fp64;
  options.train.check_every = 5;
  options.optim = {.rate = 1e-4, .warmup = 4};
  options.sync = {.every = 2, .allow_staleness = 2};
  options.comm.timeout = 20;
  return options;
}

struct Seen {
  std::vector<StepReport> reports;  // on rank 0
  std::vector<std::string> said;
  std::vector<at::Tensor> parameters;  // by rank
  std::vector<std::int64_t> steps;
  int phases = 0;
};

// Three ranks, of which one is slow enough that staleness always pays. `heard` may react to log
// lines.
Seen run(const JobOptions& options, const Line& data,
         const std::function<void(const std::string&)>& heard = {},
         const std::atomic<bool>* stop = nullptr) {
  constexpr int world = 3;
  Seen seen;
  seen.parameters.resize(world);
  seen.steps.resize(world);
  const Token token = Token::random();
  run_ranks_well({.world = world}, [&](Group& group) {
    at::set_num_threads(1);
    const auto ranks = native_communicator(group.shared_from_this());
    Stack stack = line_model();
    Trainer trainer(stack, data, options, ranks);
    if (group.rank() == 2) trainer.slow_down(30);
    if (group.rank() == 0)
      trainer.on_step([&](const StepReport& report) { seen.reports.push_back(report); });
    AsyncPhases phases(options, trainer, stack, ranks, "127.0.0.1", token,
                       [&](const std::string& text) {
                         seen.said.push_back(text);
                         if (heard) heard(text);
                       });
    phases.run_until(options.train.steps, stop);
    seen.parameters[std::size_t(group.rank())] = stack.values().clone();
    seen.steps[std::size_t(group.rank())] = trainer.step();
    if (group.rank() == 0) seen.phases = phases.phases();
  });
  return seen;
}

TEST(AsyncPhases, BeginWhereTheyPayAndLeaveEveryRankTheSame) {
  const auto options = slowly_learning();
  const Line data;
  const Seen seen = run(options, data);
  ASSERT_GE(seen.phases, 1) << (seen.said.empty() ? "nothing was said" : seen.said.back());
  ASSERT_EQ(seen.reports.size(), 120u);
  std::int64_t oldest = 0;
  for (std::size_t i = 0; i < seen.reports.size(); ++i) {
    EXPECT_EQ(seen.reports[i].step, std::int64_t(i + 1));
    for (const auto age : seen.reports[i].ages) oldest = std::max(oldest, age);
  }
  EXPECT_GT(oldest, 0);
  EXPECT_LE(oldest, 2);
  for (int r = 1; r < 3; ++r)
    EXPECT_TRUE(at::equal(seen.parameters[0], seen.parameters[std::size_t(r)])) << "rank " << r;
}

// The log of a run is what it did: the ages are correct in every step of a phase.
TEST(AsyncPhases, ReplayFromTheirLogToTheSameParameters) {
  auto options = slowly_learning();
  options.optim.rate = 1e-2;  // versions differ by far more than rounding
  const Line data;
  const Seen seen = run(options, data);
  ASSERT_GE(seen.phases, 1) << (seen.said.empty() ? "nothing was said" : seen.said.back());
  const ScratchFolder folder;
  const auto log = logged(seen.reports, folder.path());
  std::int64_t oldest = 0;
  for (const auto& step : log)
    for (const auto age : step.ages) oldest = std::max(oldest, age);
  EXPECT_GT(oldest, 0);
  Stack stack = line_model();
  const Replayed again = replay(stack, data, options.train, options.optim, 3, log);
  EXPECT_LT((again.values - seen.parameters[0]).abs().max().item<double>(), 1e-12);
}

TEST(AsyncPhases, DoNotBeginWhileTheRateRises) {
  auto options = slowly_learning();
  options.optim.warmup = 1000;
  const Line data;
  const Seen seen = run(options, data);
  EXPECT_EQ(seen.phases, 0);
  for (const auto& report : seen.reports) EXPECT_TRUE(report.ages.empty());
}

// If every worker waits for the newest parameters, a phase computes what synchronous steps do: the
// weights of shares, the moments and their count are moved correctly.
TEST(AsyncPhases, ComputeTheSameWhereNoGradientIsStale) {
  auto options = slowly_learning();
  options.train.micro_batches = 2;
  options.server.fresh_wait = 100;
  const Line data;
  const Seen seen = run(options, data);
  ASSERT_GE(seen.phases, 1) << (seen.said.empty() ? "nothing was said" : seen.said.back());
  std::size_t in_phases = 0;
  for (const auto& report : seen.reports) {
    in_phases += !report.ages.empty();
    for (const auto age : report.ages) EXPECT_EQ(age, 0);
  }
  EXPECT_GE(in_phases, 40u);
  options.sync.allow_staleness = 1;
  options.optim.schedule = RateSchedule::linear;
  auto never = options;
  never.sync.every = 1000;  // longer than the job: nothing is ever decided
  const Seen strict = run(never, data);
  EXPECT_EQ(strict.phases, 0);
  ASSERT_EQ(seen.reports.size(), strict.reports.size());
  for (std::size_t i = 0; i < seen.reports.size(); ++i) {
    EXPECT_NEAR(seen.reports[i].loss, strict.reports[i].loss, 1e-12) << "step " << i + 1;
    EXPECT_EQ(seen.reports[i].rate, strict.reports[i].rate);
  }
  EXPECT_LT((seen.parameters[0] - strict.parameters[0]).abs().max().item<double>(), 1e-12);
}

// All ranks end with the weights before the failed step, and can save them.
TEST(AsyncPhases, EndWithTheLastGoodWeightsWhenAGradientIsNotFinite) {
  const auto options = slowly_learning();
  Line data;
  std::vector<at::Tensor> kept(3);
  std::vector<std::int64_t> steps(3);
  const Token token = Token::random();
  const auto outcomes = run_outcomes({.world = 3}, [&](Group& group) {
    const auto r = std::size_t(group.rank());
    at::set_num_threads(1);
    const auto ranks = native_communicator(group.shared_from_this());
    Stack stack = line_model();
    Trainer trainer(stack, data, options, ranks);
    if (group.rank() == 2) trainer.slow_down(30);
    AsyncPhases phases(options, trainer, stack, ranks, "127.0.0.1", token,
                       [&](const std::string& text) {
                         if (text.find("may be") != std::string::npos)
                           data.factor = std::numeric_limits<double>::quiet_NaN();
                       });
    try {
      phases.run_until(options.train.steps);
    } catch (const NotFinite&) {
      kept[r] = stack.values().clone();
      steps[r] = trainer.step();
      throw;
    }
  });
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_NE(outcomes[r].message.find("not finite"), std::string::npos) << outcomes[r].message;
    EXPECT_NE(outcomes[r].message.find("the weights are those after step"), std::string::npos);
    ASSERT_TRUE(kept[r].defined());
    EXPECT_TRUE(at::isfinite(kept[r]).all().item<bool>());
    EXPECT_TRUE(at::equal(kept[r], kept[0]));
    EXPECT_EQ(steps[r], steps[0]);
  }
}

TEST(AsyncPhases, EndWhenTheLossLeavesItsBand) {
  const auto options = slowly_learning();
  Line data;
  const Seen seen = run(options, data, [&](const std::string& text) {
    if (text.find("may be") != std::string::npos) data.factor = 100;
  });
  const auto begun = std::find_if(seen.said.begin(), seen.said.end(), [](const std::string& text) {
    return text.find("may be") != std::string::npos;
  });
  ASSERT_GE(seen.said.end() - begun, 2) << "a phase began, and its result was logged";
  EXPECT_NE((begun + 1)->find("left its band"), std::string::npos) << *(begun + 1);
  ASSERT_EQ(seen.reports.size(), 120u);
  std::vector<std::size_t> lengths = {0};  // of synchronous steps, of the first phase, …
  for (std::size_t i = 0; i < seen.reports.size(); ++i) {
    if (i > 0 && seen.reports[i].ages.empty() != seen.reports[i - 1].ages.empty())
      lengths.push_back(0);
    ++lengths.back();
  }
  ASSERT_GE(lengths.size(), 3u);
  EXPECT_LE(lengths[1], 10u) << "steps, of the 40 that the phase was meant for";
  EXPECT_GE(lengths[1], 2u);
  EXPECT_GE(lengths[2], 16u) << "steps of the pause that follows";
  for (int r = 1; r < 3; ++r)
    EXPECT_TRUE(at::equal(seen.parameters[0], seen.parameters[std::size_t(r)])) << "rank " << r;
}

TEST(AsyncPhases, EndWithTheJob) {
  const auto options = slowly_learning();
  const Line data;
  std::atomic<bool> stop = false;
  const Seen seen = run(
      options, data,
      [&](const std::string& text) {
        if (text.find("may be") != std::string::npos) stop = true;
      },
      &stop);
  EXPECT_LT(seen.steps[0], 40);
  EXPECT_EQ(seen.steps[1], seen.steps[0]);
  EXPECT_EQ(seen.steps[2], seen.steps[0]);
  EXPECT_EQ(seen.reports.size(), std::size_t(seen.steps[0]));
  EXPECT_TRUE(at::equal(seen.parameters[0], seen.parameters[2]));
}

TEST(AsyncPhases, AreRefusedForRanksThatDoNotReduceAmongThemselves) {
  auto options = slowly_learning();
  options.server.count = 1;
  const Line data;
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    Stack stack = line_model();
    Trainer trainer(stack, data, options, ranks);
    EXPECT_THROW(AsyncPhases(options, trainer, stack, ranks, "127.0.0.1", Token::random(), {}),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace echelon
