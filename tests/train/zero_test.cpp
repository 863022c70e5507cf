// Ranks with sharded state train like one process: ranks are threads, in fp64.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;

struct Case {
  OptimizerKind optimizer = OptimizerKind::adamw;
  int micro_batches = 1;
  double clip = 1;
  bool tied = true;
  double group = 0, prefetch = 64;
  int stage = 0;
};

PlanOptions job_of(const Case& one) {
  PlanOptions job = tiny_options(one.optimizer, one.clip, one.micro_batches);
  job.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8, .tied = one.tied};
  job.parallel.zero = one.stage;
  job.zero.prefetch = one.prefetch;
  job.zero.group = one.group;
  return job;
}

void expect_one_process(Case one) {
  at::set_num_threads(1);
  const TinyRun expected = tiny_run(job_of(one), nullptr);
  for (one.stage = 1; one.stage <= 3; ++one.stage)
    for (int world = 2; world <= 4; ++world) {
      SCOPED_TRACE(fmt::format("stage {}, {}, {} micro-batches, world {}", one.stage,
                               name_of(one.optimizer), one.micro_batches, world));
      run_ranks_well({.world = world}, [&](Group& group) {
        expect_same_run(tiny_run(job_of(one), native_communicator(group.shared_from_this())),
                        expected, bound);
      });
    }
}

TEST(Zero, EqualsOneProcess) { expect_one_process({}); }
TEST(Zero, EqualsOneProcessWithAccumulation) { expect_one_process({.micro_batches = 3}); }
TEST(Zero, EqualsOneProcessWithoutPrefetchAndClipping) {
  expect_one_process({.clip = 0, .prefetch = 0});
}
TEST(Zero, EqualsOneProcessWithAnUntiedHead) { expect_one_process({.tied = false}); }
TEST(Zero, EqualsOneProcessWithOneGroup) { expect_one_process({.group = 100}); }
TEST(Zero, EqualsOneProcessForOptimisersOfWholeParameters) {
  expect_one_process({.optimizer = OptimizerKind::lars});
  expect_one_process({.optimizer = OptimizerKind::lamb, .micro_batches = 2});
}

// Ranks that take unequal parts of a batch, as with parallel.shares=speed.
TEST(Zero, EqualsOneProcessWithUnevenShares) {
  at::set_num_threads(1);
  Case one{.micro_batches = 2};
  const TinyRun expected = tiny_run(job_of(one), nullptr);
  for (one.stage = 1; one.stage <= 3; ++one.stage)
    run_ranks_well({.world = 3}, [&](Group& group) {
      const PlanOptions job = job_of(one);
      Stack stack = gpt(job.model);
      const auto trainer = tiny_trainer(job, stack, native_communicator(group.shared_from_this()));
      trainer->run_until(2);
      trainer->split_batch({5, 2, 17});
      trainer->run();
      EXPECT_LT((all_parameters(stack, *trainer) - expected.parameters).abs().max().item<double>(),
                bound);
    });
}

// A single owner works in its slices: it takes no pooled memory and communicates only across hosts.
TEST(Zero, EqualsOneProcessWithOneOwner) {
  at::set_num_threads(1);
  for (const int micro_batches : {1, 3}) {
    Case one{.micro_batches = micro_batches};
    const TinyRun expected = tiny_run(job_of(one), nullptr);
    for (one.stage = 1; one.stage <= 3; ++one.stage)
      for (const int hosts : {1, 2})
        run_ranks_well({.world = hosts, .hosts = hosts}, [&](Group& group) {
          PlanOptions job = job_of(one);
          job.parallel.exchange_alone = true;
          job.zero.shard = ShardOver::host;
          Stack stack = gpt(job.model);
          const auto trainer =
              tiny_trainer(job, stack, native_communicator(group.shared_from_this()));
          trainer->run();
          const at::Tensor seen = all_parameters(stack, *trainer);
          if (hosts == 1)
            EXPECT_TRUE(at::equal(seen, expected.parameters)) << one.stage << micro_batches;
          else
            EXPECT_LT((seen - expected.parameters).abs().max().item<double>(), bound);
          EXPECT_EQ(trainer->memory().at_peak()[MemoryKind::communication] == 0,
                    hosts == 1 || one.stage == 1);
        });
  }
}

// Over messages as well as over shared memory.
TEST(Zero, EqualsOneProcessAcrossHosts) {
  at::set_num_threads(1);
  Case one;
  const TinyRun expected = tiny_run(job_of(one), nullptr);
  for (one.stage = 1; one.stage <= 3; ++one.stage)
    run_ranks_well({.world = 4, .hosts = 2}, [&](Group& group) {
      const TinyRun seen = tiny_run(job_of(one), native_communicator(group.shared_from_this()));
      EXPECT_LT((seen.parameters - expected.parameters).abs().max().item<double>(), bound);
    });
}

// A user's module, through autograd; a part of it is frozen.
TEST(Zero, TrainsAModule) {
  at::set_num_threads(1);
  at::manual_seed(4);
  const TensorDataset data(at::randn({40, 6}, at::kDouble), at::randn({40, 1}, at::kDouble));
  const auto train = [&](int stage, std::shared_ptr<Communicator> ranks) {
    const UserModule first("first", {part::Linear{6, 20}, part::Tanh{}}),
        second("second", {part::Linear{20, 20}, part::Tanh{}}),
        third("third", {part::Linear{20, 1}});
    double fill = 0.1;
    for (const auto& net : {first, second, third})
      for (auto& parameter : net.parameters()) {
        const at::NoGradGuard no_grad;
        parameter.copy_(at::linspace(-fill, fill, parameter.numel()).view_as(parameter));
        fill *= 1.3;
      }
    second.parameters()[1].set_requires_grad(false);
    Stack stack;
    stack.add(first.layer())
        .add(second.layer())
        .add(third.layer())
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
    const PlanOptions job = tiny_options();
    Trainer trainer(
        stack, data,
        {.train = job.train, .optim = job.optim, .parallel = {.zero = stage}, .zero = {.group = 0}},
        std::move(ranks));
    trainer.run();
    return all_parameters(stack, trainer);
  };
  const at::Tensor expected = train(0, nullptr);
  for (int stage = 1; stage <= 3; ++stage)
    for (int world = 2; world <= 3; ++world)
      run_ranks_well({.world = world}, [&](Group& group) {
        const at::Tensor seen = train(stage, native_communicator(group.shared_from_this()));
        EXPECT_LT((seen - expected).abs().max().item<double>(), bound)
            << "stage " << stage << ", world " << world;
      });
}

// A state fits any stage and any number of ranks.
TEST(Zero, ContinuesFromStatesOfAnyStage) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const at::Tensor expected = tiny_run(job_of({}), nullptr).parameters;
  const auto part = [&](const Case& one, std::shared_ptr<Communicator> ranks,
                        const std::filesystem::path& from, const std::filesystem::path& to,
                        std::int64_t until) {
    const PlanOptions job = job_of(one);
    Stack stack = gpt(job.model);
    const auto trainer = tiny_trainer(job, stack, std::move(ranks));
    if (!from.empty()) trainer->restore(from);
    trainer->run_until(until);
    if (!to.empty()) trainer->save(to);
    return all_parameters(stack, *trainer);
  };
  for (int stage = 1; stage <= 3; ++stage) {
    const auto first = folder / fmt::format("{}-first", stage),
               second = folder / fmt::format("{}-second", stage);
    run_ranks_well({.world = 3}, [&](Group& group) {
      part({.stage = stage}, native_communicator(group.shared_from_this()), {}, first, 2);
    });
    part({}, nullptr, first, second, 3);
    run_ranks_well({.world = 2}, [&](Group& group) {
      const at::Tensor seen = part({.group = 100, .stage = stage % 3 + 1},
                                   native_communicator(group.shared_from_this()), second, {}, 5);
      EXPECT_LT((seen - expected).abs().max().item<double>(), bound) << "stage " << stage;
    });
  }
}

}  // namespace
}  // namespace echelon
