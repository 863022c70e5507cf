// Ranks that each have a part of a model train like one process: ranks are threads, in fp64.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/nn/split_plan.h"
#include "echelon/plan/layer_costs.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;

struct Case {
  int pipeline = 2, data = 1, tensor = 1;
  int stage = 0;
  int micro_batches = 4;
  PipelineOrder schedule = PipelineOrder::one_f_one_b;
  int chunks = 1;
  OptimizerKind optimizer = OptimizerKind::adamw;
  Recompute recompute = Recompute::none;
  ScatterOption scatter = ScatterOption::automatic;
  Offload offload = Offload::none;
  bool tied = true;
  double dropout = 0;
  std::string layers = {};
  BalanceBy balance = BalanceBy::count;
  double group = 0;
  double clip = 1;
  bool sequence = true;
  std::int64_t vocab = 32;
  std::int64_t seed = 1;

  int world() const { return pipeline * data * tensor; }
};

std::string to_string(const Case& one) {
  return fmt::format(
      "pipeline {} x data {} x tensor {}, stage {}, {} with {} chunks of {} micro-batches, {}, "
      "recompute {}, scatter {}, offload {}, {}",
      one.pipeline, one.data, one.tensor, one.stage, name_of(one.schedule), one.chunks,
      one.micro_batches, name_of(one.optimizer), name_of(one.recompute), name_of(one.scatter),
      name_of(one.offload), one.tied ? "tied" : "untied");
}

PlanOptions job_of(const Case& one) {
  PlanOptions job = tiny_options(one.optimizer, one.clip, one.micro_batches);
  job.train.steps = 4;
  job.train.seed = one.seed;
  job.model = {.layers = 4,
               .width = 24,
               .heads = 6,
               .vocab = one.vocab,
               .context = 8,
               .tied = one.tied,
               .dropout = one.dropout,
               .recompute = one.recompute};
  job.parallel = {.zero = one.stage,
                  .pipeline = one.pipeline,
                  .data = one.data,
                  .tensor = one.tensor,
                  .sequence = one.sequence};
  job.zero = {.group = one.group, .offload = one.offload, .scatter = one.scatter};
  job.pipeline = {
      .schedule = one.schedule, .chunks = one.chunks, .balance = one.balance, .stages = one.layers};
  return job;
}

Stack model(const Case& one) { return gpt(job_of(one).model); }

std::unique_ptr<Trainer> trainer_of(const Case& one, Stack& stack,
                                    std::shared_ptr<Communicator> ranks) {
  return tiny_trainer(job_of(one), stack, std::move(ranks));
}

void expect_one_process(const Case& one) {
  SCOPED_TRACE(to_string(one));
  at::set_num_threads(1);
  const TinyRun expected = tiny_run(job_of(one), nullptr);
  run_ranks_well({.world = one.world()}, [&](Group& group) {
    expect_same_run(tiny_run(job_of(one), native_communicator(group.shared_from_this())), expected,
                    bound);
  });
}

TEST(Mesh, PipelinesEqualOneProcess) {
  for (const auto schedule :
       {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
    for (const bool tied : {true, false}) expect_one_process({.schedule = schedule, .tied = tied});
  expect_one_process({.pipeline = 3, .layers = "1,2,3"});
  expect_one_process({.schedule = PipelineOrder::interleaved, .chunks = 3});
  expect_one_process({.dropout = 0.2});
  for (const auto by : {BalanceBy::time, BalanceBy::memory}) expect_one_process({.balance = by});
}

TEST(Mesh, PipelinesEqualOneProcessWithRecompute) {
  for (const auto recompute : {Recompute::selective, Recompute::full})
    for (const auto schedule : {PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
      expect_one_process({.schedule = schedule, .recompute = recompute, .dropout = 0.1});
}

TEST(Mesh, PipelinesOfSeveralDataRanksEqualOneProcess) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto schedule : {PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble}) {
      expect_one_process({.data = 2, .stage = stage, .schedule = schedule});
      expect_one_process({.data = 2, .stage = stage, .schedule = schedule, .group = 100});
    }
  expect_one_process({.pipeline = 3, .data = 2, .stage = 3, .layers = "1,2,3"});
  expect_one_process({.data = 3, .stage = 2, .micro_batches = 3, .tied = false});
}

TEST(Mesh, GradientsOfAPipelineAreScatteredWhenTold) {
  for (int stage = 2; stage <= 3; ++stage)
    for (const auto scatter : {ScatterOption::micro_batch, ScatterOption::step})
      for (const auto schedule : {PipelineOrder::gpipe, PipelineOrder::one_f_one_b,
                                  PipelineOrder::interleaved, PipelineOrder::zero_bubble})
        expect_one_process({.data = 2,
                            .stage = stage,
                            .schedule = schedule,
                            .chunks = schedule == PipelineOrder::interleaved ? 2 : 1,
                            .scatter = scatter});
}

TEST(Mesh, OffloadAndOptimisersOfWholeParametersEqualOneProcess) {
  for (const auto optimizer : {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::lamb})
    for (const int stage : {0, 3})
      expect_one_process({.data = 2, .stage = stage, .optimizer = optimizer});
  expect_one_process({.data = 2, .stage = 3, .offload = Offload::host});
  expect_one_process({.data = 1, .stage = 1, .offload = Offload::host});
}

TEST(Mesh, SplitMatricesEqualOneProcess) {
  for (const bool sequence : {true, false})
    for (const int tensor : {2, 3}) {
      const bool rows = sequence && tensor == 2;  // 8 tokens are not divisible by 3
      expect_one_process({.pipeline = 1, .tensor = tensor, .dropout = 0.1, .sequence = rows});
      expect_one_process(
          {.pipeline = 1, .tensor = tensor, .tied = false, .sequence = sequence, .vocab = 35});
    }
  for (const auto optimizer : {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::lamb})
    expect_one_process({.pipeline = 1, .tensor = 2, .optimizer = optimizer});
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto optimizer : {OptimizerKind::adamw, OptimizerKind::lamb})
      expect_one_process(
          {.pipeline = 1, .data = 2, .tensor = 2, .stage = stage, .optimizer = optimizer});
}

TEST(Mesh, AllThreeDimensionsEqualOneProcess) {
  for (const bool sequence : {true, false})
    for (const auto schedule : {PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
      expect_one_process({.tensor = 2, .schedule = schedule, .dropout = 0.1, .sequence = sequence});
  expect_one_process({.tensor = 2,
                      .schedule = PipelineOrder::interleaved,
                      .chunks = 2,
                      .recompute = Recompute::selective});
  for (int stage = 0; stage <= 3; ++stage)
    expect_one_process({.data = 2,
                        .tensor = 2,
                        .stage = stage,
                        .recompute = stage == 3 ? Recompute::full : Recompute::none,
                        .vocab = 33});
  expect_one_process({.data = 2,
                      .tensor = 2,
                      .stage = 3,
                      .optimizer = OptimizerKind::lamb,
                      .offload = Offload::host});
}

// A state fits any mesh: one mesh writes it, and others continue from it.
TEST(Mesh, AStateFitsEveryMesh) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const auto path = folder.path() / "state.safetensors";
  const Case first{.data = 2, .stage = 3};
  const TinyRun expected = tiny_run(job_of(first), nullptr);
  run_ranks_well({.world = 4}, [&](Group& group) {
    Stack stack = model(first);
    const auto trainer = trainer_of(first, stack, native_communicator(group.shared_from_this()));
    trainer->run_until(2);
    trainer->save(path);
  });
  for (const Case& next : {Case{.pipeline = 3, .schedule = PipelineOrder::zero_bubble},
                           Case{.data = 2}, Case{.pipeline = 1, .data = 2, .stage = 2},
                           Case{.pipeline = 1, .tensor = 3}, Case{.tensor = 2, .stage = 0}}) {
    SCOPED_TRACE(to_string(next));
    run_ranks_well({.world = next.world()}, [&](Group& group) {
      Stack stack = model(next);
      const auto trainer = trainer_of(next, stack, native_communicator(group.shared_from_this()));
      trainer->restore(path);
      trainer->run();
      EXPECT_LT((all_parameters(stack, *trainer) - expected.parameters).abs().max().item<double>(),
                bound);
    });
  }
  Stack stack = model(first);
  const auto alone = trainer_of(first, stack, nullptr);
  alone->restore(path);
  alone->run();
  EXPECT_LT((all_parameters(stack, *alone) - expected.parameters).abs().max().item<double>(),
            bound);
}

// Each rank has its own file, from another step or another run.
TEST(Mesh, ReportsRanksThatRestoreDifferentStates) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const auto save = [&](const Case& one, std::int64_t steps, const char* name) {
    Stack stack = model(one);
    const auto trainer = trainer_of(one, stack, nullptr);
    trainer->run_until(steps);
    trainer->save(folder.path() / name);
  };
  save({}, 2, "state");
  save({}, 3, "later");
  save({.seed = 9}, 2, "another");
  const auto restored = [&](const Case& one, const char* on_last) {
    return run_outcomes({.world = one.world()}, [&](Group& group) {
      Stack stack = model(one);
      const auto trainer = trainer_of(one, stack, native_communicator(group.shared_from_this()));
      trainer->restore(folder.path() / (group.rank() + 1 == one.world() ? on_last : "state"));
      trainer->run();
    });
  };
  for (const Case& one : {Case{.pipeline = 2}, Case{.pipeline = 1, .tensor = 2},
                          Case{.pipeline = 1, .data = 2, .stage = 2}}) {
    SCOPED_TRACE(to_string(one));
    for (const auto& outcome : restored(one, "state")) EXPECT_EQ(outcome.message, "");
    for (const auto& outcome : restored(one, "later"))
      EXPECT_NE(outcome.message.find("rank 1 goes on after step 3 and rank 0 after step 2"),
                std::string::npos)
          << outcome.message;
    for (const auto& outcome : restored(one, "another"))
      EXPECT_NE(outcome.message.find("rank 1 restored another state than rank 0"),
                std::string::npos)
          << outcome.message;
  }
}

// If data-parallel ranks sum in an order that depends on an element's position (a ring of three),
// the copies of a tied table must not diverge: a state has only one of them.
TEST(Mesh, CopiesOfATiedParameterStayTheSame) {
  at::set_num_threads(1);
  for (const int stage : {0, 1, 2, 3}) {
    for (const double group : {0.0, 0.02}) {
      const Case one{
          .data = 3, .stage = stage, .micro_batches = 2, .layers = "2,4", .group = group};
      SCOPED_TRACE(to_string(one));
      std::vector<at::Tensor> copies(std::size_t(one.world()));
      run_ranks_well({.world = one.world(), .shared_memory = false}, [&](Group& ranks) {
        Stack stack = model(one);
        const auto trainer = trainer_of(one, stack, native_communicator(ranks.shared_from_this()));
        trainer->reduce_by(Algorithm::ring);
        trainer->run();  // compares copies after every step, even if ranks have only slices
        const at::Tensor value = stack.find("transformer.wte.weight")->value;
        if (stage < 3) copies[std::size_t(ranks.rank())] = value.clone();
      });
      if (stage == 3) continue;
      for (const auto& copy : copies) EXPECT_TRUE(at::equal(copy, copies[0]));
    }
  }
}

// Running statistics have the model's type on the rank with the layer, and so on the ranks that
// write and read them.
TEST(Mesh, StatisticsOfAStageAreInTheState) {
  at::set_num_threads(1);
  at::manual_seed(6);
  const TensorDataset data(at::randn({40, 6}, at::kDouble), at::randn({40, 2}, at::kDouble));
  const ScratchFolder folder;
  const auto path = folder.path() / "state.safetensors";
  run_ranks_well({.world = 2}, [&](Group& group) {
    const UserModule first("first", {part::Linear{6, 4}}),
        second("second", {part::BatchNorm{4}, part::Linear{4, 2}});
    Stack stack;
    stack.add(first.layer())
        .add(second.layer())
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
    PipelineOptions pipeline;
    pipeline.stages = "1,2";
    const auto ranks = native_communicator(group.shared_from_this());
    const PlanOptions job = job_of({});
    Trainer trainer(
        stack, data,
        {.train = job.train, .optim = job.optim, .parallel = {.pipeline = 2}, .pipeline = pipeline},
        ranks);
    trainer.run_until(2);
    trainer.save(path);
    ranks->barrier().wait();  // the first rank has written it
    const bool here = group.rank() == 1;
    at::Tensor mean = second.buffer("0.running_mean");
    const at::Tensor kept = mean.clone();
    if (here) {
      EXPECT_GT(kept.abs().max().item<double>(), 0);
    }
    mean.zero_();
    trainer.restore(path);
    if (here) {
      EXPECT_TRUE(at::equal(mean, kept));
    }
    trainer.run();
  });
}

class Product : public Layer {
 public:
  void declare(Declaration& declaration) override {
    linear_.declare(declaration, "product", 5, 3, 0.5);
  }
  at::Tensor forward(const at::Tensor& input, Pass& pass) override {
    if (pass.keeps()) pass.saved = {input};
    return linear_.forward(input);
  }
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override {
    return linear_.backward(grad_output, pass.saved[0], pass);
  }

 private:
  Linear linear_;
};

// The last rank has only the loss: nothing to own, sum or update.
TEST(Mesh, ARankWithoutParametersTrainsWithTheOthers) {
  at::set_num_threads(1);
  at::manual_seed(5);
  const TensorDataset data(at::randn({40, 5}, at::kDouble), at::randn({40, 3}, at::kDouble));
  const auto trained_by = [&](std::shared_ptr<Communicator> ranks, int stage) {
    Stack stack;
    stack.add(std::make_unique<Product>())
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
    const ParallelOptions parallel =
        ranks ? ParallelOptions{.zero = stage, .pipeline = 2} : ParallelOptions{};
    PipelineOptions pipeline;
    pipeline.balance = BalanceBy::count;
    const PlanOptions job = job_of({});
    Trainer trainer(
        stack, data,
        {.train = job.train, .optim = job.optim, .parallel = parallel, .pipeline = pipeline},
        std::move(ranks));
    trainer.run();
    return all_parameters(stack, trainer);
  };
  const at::Tensor expected = trained_by(nullptr, 0);
  for (int stage = 0; stage <= 3; ++stage)
    run_ranks_well({.world = 4}, [&](Group& group) {
      const auto seen = trained_by(native_communicator(group.shared_from_this()), stage);
      EXPECT_LT((seen - expected).abs().max().item<double>(), bound) << "stage " << stage;
    });
}

TEST(Mesh, GivesEqualBlocksTheSameTime) {
  at::set_num_threads(1);
  Stack stack = model({});
  const RandomTokens data(32, 8, 1);
  const Batch batch = data.get(std::vector<std::int64_t>{0, 1});
  const auto costs = measure_layers(stack, batch, at::kCPU, at::kDouble, 32);
  ASSERT_GE(std::ssize(costs), 4);
  const LayerCost &embedding = costs.front(), &first = costs[1], &head = costs.back();
  for (std::size_t l = 1; l + 1 < costs.size(); ++l)
    EXPECT_EQ(costs[l].seconds, first.seconds) << "block " << l;
  EXPECT_NE(embedding.seconds, first.seconds);
  EXPECT_NE(head.seconds, first.seconds);
}

std::string refusal(const Case& one) {
  std::string why;
  for (const auto& outcome : run_outcomes({.world = one.world()}, [&](Group& group) {
         Stack stack = model(one);
         trainer_of(one, stack, native_communicator(group.shared_from_this()));
       }))
    if (why.empty() || outcome.message.find("has ended") == std::string::npos)
      why = outcome.message;
  return why;
}

TEST(Mesh, RejectsSizesThatDoNotFit) {
  EXPECT_NE(
      refusal({.schedule = PipelineOrder::interleaved, .chunks = 4}).find("the model has 6 layers"),
      std::string::npos);
  EXPECT_NE(refusal({.micro_batches = 1, .schedule = PipelineOrder::interleaved, .chunks = 2})
                .find("micro-batches"),
            std::string::npos);
  EXPECT_NE(refusal({.layers = "3,4"}).find("pipeline.stages"), std::string::npos);
  EXPECT_NE(refusal({.layers = "0,6"}).find("1 or more"), std::string::npos);
  EXPECT_NE(refusal({.stage = 1}).find("there is one"), std::string::npos);
}

}  // namespace
}  // namespace echelon
