// A run with parameter servers logs what it did: a replay from its metrics gives the same
// parameters. So the ages in the log are correct, and they are within the bound.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "echelon/job/server_job.h"
#include "tests/base/scratch_folder.h"
#include "tests/collective/ranks.h"
#include "tests/job/replay.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;

JobOptions job_of(int servers, ServerMode mode, std::int64_t staleness) {
  JobOptions options;
  options.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
  options.train.steps = 40;
  options.train.batch = 12;
  options.train.precision = Precision::fp64;
  options.optim.warmup = 2;
  options.optim.rate = 0.01;  // so that versions differ by far more than rounding
  options.comm.timeout = 60;
  options.server = {.count = servers, .mode = mode, .staleness = staleness};
  options.server.fresh_wait = 0;  // no worker waits for newer parameters
  return options;
}

struct Seen {
  at::Tensor values;
  std::vector<StepReport> reports;
  std::int64_t oldest = 0;
};

// As many workers as servers, and one more; the last ones are slow.
Seen run(const JobOptions& options, int world) {
  const Token token = Token::random();
  Seen seen;
  run_ranks_well({.world = world}, [&](Group& group) {
    at::set_num_threads(1);
    const auto ranks = native_communicator(group.shared_from_this());
    ServerJob job(options, *ranks, "127.0.0.1", token);
    Stack stack = gpt(options.model);
    Trainer trainer(stack, tokens(), options);
    job.attach(trainer, stack);
    trainer.slow_down(1 + 5 * group.rank());
    if (group.rank() == 0)
      trainer.on_step([&](const StepReport& report) { seen.reports.push_back(report); });
    trainer.run();
    if (group.rank() == 0) seen.values = stack.values().clone();
    trainer.leave_servers();
    job.wait();
  });
  for (const auto& report : seen.reports)
    for (const auto age : report.ages) seen.oldest = std::max(seen.oldest, age);
  return seen;
}

double furthest(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

void expect_the_log_to_be_true(const JobOptions& options, int world, const Seen& seen) {
  ASSERT_EQ(std::ssize(seen.reports), options.train.steps);
  EXPECT_GT(seen.oldest, 0) << "else nothing was old, and this shows nothing";
  const ScratchFolder folder;
  const auto log = logged(seen.reports, folder.path());
  Stack stack = gpt(options.model);
  const Replayed again = replay(stack, tokens(), options.train, options.optim, world, log);
  EXPECT_LT(furthest(again.values, seen.values), bound);
  for (std::size_t i = 0; i < log.size(); ++i) {
    ASSERT_NEAR(again.losses[i], seen.reports[i].loss, bound) << "step " << i + 1;
    ASSERT_NEAR(again.norms[i], seen.reports[i].grad_norm, bound) << "step " << i + 1;
  }
  // A share of another version would be noticed.
  auto wrong = log;
  auto& ages = wrong[wrong.size() / 2].ages;
  ages.back() = ages.back() > 0 ? ages.back() - 1 : 1;
  Stack other = gpt(options.model);
  EXPECT_GT(furthest(replay(other, tokens(), options.train, options.optim, world, wrong).values,
                     seen.values),
            1e3 * bound);
}

// The replay has shown that the ages are correct.
TEST(ServerReplay, KeepsTheBoundWhenAWorkerIsSlow) {
  for (const int servers : {1, 2, 3})
    for (const std::int64_t staleness : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} servers, staleness {}", servers, staleness));
      const JobOptions options = job_of(servers, ServerMode::bounded, staleness);
      const Seen seen = run(options, servers + 1);
      expect_the_log_to_be_true(options, servers + 1, seen);
      EXPECT_LE(seen.oldest, staleness);
    }
}

TEST(ServerReplay, OfAnAsynchronousRunGivesTheSameParameters) {
  for (const int servers : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} servers", servers));
    const JobOptions options = job_of(servers, ServerMode::async, 0);
    expect_the_log_to_be_true(options, servers + 1, run(options, servers + 1));
  }
}

}  // namespace
}  // namespace echelon
