// A trainer that loses or gains ranks continues like one process: in fp64, ranks are threads.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;
constexpr std::int64_t before = 2;  // steps on the first ranks

PlanOptions job_of(const ParallelOptions& parallel, const ZeroOptions& zero = {}) {
  PlanOptions job = tiny_options(OptimizerKind::adamw, /*clip=*/1, /*micro_batches=*/2);
  job.model = {.layers = 2, .width = 24, .heads = 6, .vocab = 32, .context = 8};
  job.parallel = parallel;
  job.zero = zero;
  return job;
}

void save(Trainer& trainer, const std::string& path, Communicator& ranks) {
  if (ranks.rank() == 0 || trainer.saves_together()) trainer.save(path);
  ranks.barrier().wait();
}

// Every second rank stays; the others leave.
void expect_half_go_on(const PlanOptions& job, int world = 4) {
  at::set_num_threads(1);
  const TinyRun expected = tiny_run(job, nullptr);
  const ScratchFolder folder;
  run_ranks_well({.world = world}, [&](Group& group) {
    auto all = native_communicator(group.shared_from_this());
    const bool stays = group.rank() % 2 == 1;
    Stack stack = gpt(job.model);
    TinyRun seen;
    auto trainer = tiny_trainer(job, stack, all);
    trainer->on_step([&](const StepReport& report) { seen.reports.push_back(report); });
    trainer->run_until(before);
    save(*trainer, folder / "state", *all);
    const auto half = all->split(stays ? 0 : -1, group.rank());
    all.reset();
    if (!stays) return;
    trainer->lay_out(half);
    EXPECT_EQ(trainer->step(), 0);
    trainer->restore(folder / "state");
    EXPECT_EQ(trainer->step(), before);
    trainer->run();
    seen.parameters = all_parameters(stack, *trainer);
    seen.validation = trainer->evaluate(tokens(), 20);
    expect_same_run(seen, expected, bound);
    EXPECT_EQ(trainer->layout().mesh.all->size(), world / 2);

    // The memory of the previous ranks is freed: the trainer uses as much as one that was made for
    // these ranks.
    const MemoryUse now = trainer->memory().now();
    trainer.reset();
    Stack other = gpt(job.model);
    trainer = tiny_trainer(job, other, half);
    trainer->restore(folder / "state");
    trainer->run();
    all_parameters(other, *trainer);
    trainer->evaluate(tokens(), 20);
    const MemoryUse fresh = trainer->memory().now();
    for (std::size_t kind = 0; kind < memory_kind_names.size(); ++kind)
      EXPECT_EQ(now.bytes[kind], fresh.bytes[kind]) << memory_kind_names[kind];
  });
}

TEST(LayOut, DataRanksContinueWhenSomeLeave) { expect_half_go_on(job_of({})); }

TEST(LayOut, OwnersOfSlicesContinueWhenSomeLeave) {
  for (const std::int64_t stage : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    expect_half_go_on(job_of({.zero = stage}, {.group = 0}));
  }
  expect_half_go_on(job_of({.zero = 3}, {.offload = Offload::host}));
}

TEST(LayOut, PipelinesContinueWhenSomeLeave) {
  expect_half_go_on(job_of({.pipeline = 2}));
  expect_half_go_on(job_of({.zero = 3, .pipeline = 2}), 8);
}

TEST(LayOut, TensorRanksContinueWhenOthersLeave) {
  expect_half_go_on(job_of({.tensor = 2}));
  expect_half_go_on(job_of({.zero = 3, .tensor = 2}), 8);
}

// Existing ranks lay the model out again, and newcomers construct a trainer.
TEST(LayOut, RanksContinueWithNewcomersAndThenAlone) {
  at::set_num_threads(1);
  const PlanOptions job = job_of({.zero = 3});
  const TinyRun expected = tiny_run(job, nullptr);
  const ScratchFolder folder;
  run_ranks_well({.world = 4}, [&](Group& group) {
    const auto all = native_communicator(group.shared_from_this());
    const auto two = all->split(group.rank() < 2 ? 0 : -1, group.rank());
    Stack stack = gpt(job.model);
    std::unique_ptr<Trainer> trainer;
    if (two) {
      trainer = tiny_trainer(job, stack, two);
      trainer->run_until(before);
      save(*trainer, folder / "state", *two);
      trainer->lay_out(all);
    } else {
      trainer = tiny_trainer(job, stack, all);
    }
    trainer->restore(folder / "state");
    trainer->run_until(before + 1);
    save(*trainer, folder / "state", *all);
    if (group.rank() > 0) return;
    trainer->lay_out(nullptr);
    trainer->restore(folder / "state");
    trainer->run();
    EXPECT_FALSE(trainer->saves_together());
    EXPECT_LT((all_parameters(stack, *trainer) - expected.parameters).abs().max().item<double>(),
              bound);
  });
}

// A user's module has its layer's parameters in every layout.
TEST(LayOut, GivesAUsersModuleItsParametersBack) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  at::manual_seed(1);
  const TensorDataset data(at::randn({32, 6}), at::randn({32, 2}));
  const at::Tensor x = at::randn({4, 6}, at::kDouble);
  // Modules take their initial values from torch's global generator, so they are made one at a
  // time, with the same values.
  const auto module = [] {
    static std::mutex turn;
    const std::lock_guard lock(turn);
    at::manual_seed(2);
    return UserModule("net", {part::Linear{6, 8}, part::Tanh{}, part::Linear{8, 2}});
  };
  TrainerOptions options;
  options.train = {.steps = 4, .batch = 16};
  options.train.precision = Precision::fp64;
  const auto add_loss = [](Stack& stack) {
    stack.add(loss_layer(
        [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); }));
  };
  at::Tensor expected;
  {
    const UserModule net = module();
    Stack stack;
    add_loss(stack.add(net.layer()));
    Trainer trainer(stack, data, options);
    trainer.run();
    expected = net.forward(x);
  }
  options.parallel.zero = 3;
  run_ranks_well({.world = 4}, [&](Group& group) {
    const auto all = native_communicator(group.shared_from_this());
    const UserModule net = module();
    Stack stack;
    add_loss(stack.add(net.layer()));
    Trainer trainer(stack, data, options, all);
    trainer.run_until(2);
    save(trainer, folder / "state", *all);
    const auto two = all->split(group.rank() < 2 ? 0 : -1, group.rank());
    if (!two) return;
    trainer.lay_out(two);
    trainer.restore(folder / "state");
    trainer.run();
    EXPECT_THROW(net.forward(x), std::exception) << "its ranks share it out";
    trainer.gather();
    EXPECT_LT((net.forward(x) - expected).abs().max().item<double>(), bound);
  });
}

TEST(LayOut, RejectsRanksThatDoNotFitTheOptionsAndChangesNothing) {
  at::set_num_threads(1);
  const PlanOptions job = job_of({.zero = 2, .data = 2});
  const TinyRun expected = tiny_run(job, nullptr);
  run_ranks_well({.world = 2}, [&](Group& group) {
    Stack stack = gpt(job.model);
    auto trainer = tiny_trainer(job, stack, native_communicator(group.shared_from_this()));
    trainer->run_until(before);
    EXPECT_EQ(thrown<InvalidArgument>([&] { trainer->lay_out(nullptr); }),
              "pipeline 1 x data 2 x tensor 1 takes 2 ranks, and there is 1: start 2, or let data "
              "be what is left; parallel.pipeline, parallel.data and parallel.tensor make the mesh "
              "(parallel.data=0: what the others leave)");
    EXPECT_EQ(trainer->step(), before);
    trainer->run();
    EXPECT_LT((all_parameters(stack, *trainer) - expected.parameters).abs().max().item<double>(),
              bound);
  });
}

TEST(LayOut, RejectsTooFewRanksToShardTheState) {
  const PlanOptions job = job_of({.zero = 3, .pipeline = 2});
  run_ranks_well({.world = 4}, [&](Group& group) {
    const auto all = native_communicator(group.shared_from_this());
    Stack stack = gpt(job.model);
    auto trainer = tiny_trainer(job, stack, all);
    const auto two = all->split(group.rank() / 2, group.rank());
    EXPECT_EQ(
        thrown<InvalidArgument>([&] { trainer->lay_out(two); }),
        "parallel.zero shares a model's state out over the ranks that split the batch, and in "
        "a mesh of pipeline 2 x data 1 x tensor 1 there is one: give more ranks, or set "
        "parallel.zero=0");
    trainer->run_until(1);
  });
}

TEST(LayOut, FailureIsReportedByEveryCallUntilOneSucceeds) {
  at::set_num_threads(1);
  PlanOptions job = job_of({.pipeline = 2});
  job.pipeline.stages = "1,3";
  run_ranks_well({.world = 4}, [&](Group& group) {
    auto all = native_communicator(group.shared_from_this());
    Stack stack = gpt(job.model);
    auto trainer = tiny_trainer(job, stack, all);
    const auto two = all->split(group.rank() / 2, group.rank());
    stack.add(loss_layer([](const at::Tensor& y, const at::Tensor&) { return y.sum(); }));
    EXPECT_THROW(trainer->lay_out(two), InvalidArgument) << "a layer more than the stages say";
    EXPECT_EQ(thrown<Error>([&] { trainer->run(); }),
              "the model is not laid out over any ranks, since lay_out() failed: call it again");
    EXPECT_THROW(trainer->infer(tokens().get(std::vector<std::int64_t>{0}).input), Error);
    EXPECT_THROW(trainer->reduce_by(Algorithm::ring), Error);
    EXPECT_THROW(trainer->buckets(), Error);
    EXPECT_THROW(trainer->executor(), Error);
  });
}

TEST(LayOut, RejectsOptionsThatNeedRanksAndChangesNothing) {
  at::set_num_threads(1);
  const PlanOptions job = job_of({.zero = 2}, {.group = 0, .shard = ShardOver::host});
  run_ranks_well({.world = 2}, [&](Group& group) {
    auto all = native_communicator(group.shared_from_this());
    Stack stack = gpt(job.model);
    auto trainer = tiny_trainer(job, stack, all);
    EXPECT_THROW(trainer->lay_out(nullptr), InvalidArgument);
    trainer->run();
    EXPECT_EQ(trainer->step(), job.train.steps);
  });
}

}  // namespace
}  // namespace echelon
