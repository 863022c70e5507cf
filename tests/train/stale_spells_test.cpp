// Ranks that let gradients be old for a spell: as threads, with real servers.
#include "echelon/train/stale_spells.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include "echelon/nn/module_layer.h"
#include "tests/collective/ranks.h"

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
    return {input, input.sum(1, true) * factor.load() + noise_.index_select(0, rows)};
  }
  std::atomic<double> factor = 1;

 private:
  at::Tensor inputs_, noise_;
};

JobOptions slowly_learning() {
  JobOptions options;
  options.train.steps = 120;
  options.train.batch = 12;
  options.train.precision = "fp64";
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
  int spells = 0;
};

// Three ranks, of which one is slow enough that staleness always pays. `heard` may act on what is
// said.
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
    torch::nn::Linear body(8, 1);
    Stack stack;
    stack.add(module_layer("body", body))
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
    Trainer trainer(stack, data, options.train, options.optim, ranks);
    if (group.rank() == 2) trainer.slow_down(30);
    if (group.rank() == 0)
      trainer.on_step([&](const StepReport& report) { seen.reports.push_back(report); });
    StaleSpells spells(options, trainer, stack, ranks, "127.0.0.1", token,
                       [&](const std::string& text) {
                         seen.said.push_back(text);
                         if (heard) heard(text);
                       });
    spells.run_until(options.train.steps, stop);
    seen.parameters[std::size_t(group.rank())] = stack.values().clone();
    seen.steps[std::size_t(group.rank())] = trainer.step();
    if (group.rank() == 0) seen.spells = spells.spells();
  });
  return seen;
}

TEST(StaleSpells, ComeWhereTheyPayAndLeaveEveryRankTheSame) {
  const auto options = slowly_learning();
  const Line data;
  const Seen seen = run(options, data);
  ASSERT_GE(seen.spells, 1) << (seen.said.empty() ? "nothing was said" : seen.said.back());
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

  // At such a rate, old gradients are nearly those of now.
  JobOptions strict = options;
  strict.sync.allow_staleness = 1;
  strict.optim.warmup = 1000;  // the rate rises: never stale
  const Seen never = run(strict, data);
  EXPECT_EQ(never.spells, 0);
  for (const auto& report : never.reports) EXPECT_TRUE(report.ages.empty());
}

TEST(StaleSpells, AreUndoneWhenTheLossLeavesItsBand) {
  const auto options = slowly_learning();
  Line data;
  const Seen seen = run(options, data, [&](const std::string& text) {
    if (text.find("may be") != std::string::npos) data.factor = 100;
  });
  ASSERT_GE(seen.said.size(), 2u);
  EXPECT_NE(seen.said[1].find("left its band"), std::string::npos) << seen.said[1];
  ASSERT_EQ(seen.reports.size(), 120u);
  std::vector<std::size_t> lengths = {0};  // of synchronous steps, of the first spell, …
  for (std::size_t i = 0; i < seen.reports.size(); ++i) {
    if (i > 0 && seen.reports[i].ages.empty() != seen.reports[i - 1].ages.empty())
      lengths.push_back(0);
    ++lengths.back();
  }
  ASSERT_GE(lengths.size(), 3u);
  EXPECT_LE(lengths[1], 10u) << "steps, of the 40 that the spell was meant for";
  EXPECT_GE(lengths[1], 2u);
  EXPECT_GE(lengths[2], 16u) << "steps of the pause that follows";
  for (int r = 1; r < 3; ++r)
    EXPECT_TRUE(at::equal(seen.parameters[0], seen.parameters[std::size_t(r)])) << "rank " << r;
}

TEST(StaleSpells, EndWithTheJob) {
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

TEST(StaleSpells, AreForRanksThatReduceAmongThemselves) {
  auto options = slowly_learning();
  options.server.count = 1;
  const Line data;
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    torch::nn::Linear body(8, 1);
    Stack stack;
    stack.add(module_layer("body", body))
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
    Trainer trainer(stack, data, options.train, options.optim, ranks);
    EXPECT_THROW(StaleSpells(options, trainer, stack, ranks, "127.0.0.1", Token::random(), {}),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace echelon
