// train.reduce=fp32 in a pipeline. Whatever the order of a step, the update gets the sum of the
// micro-batches' gradients, each computed separately in the model's type, to the rounding of fp32.
// Ranks are threads.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>

#include "echelon/nn/split_plan.h"
#include "echelon/optim/master_update.h"
#include "echelon/plan/compute_type.h"
#include "echelon/step/executor.h"
#include "echelon/train/trainer.h"
#include "tests/collective/ranks.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double rate = 0.5;

struct Case {
  int pipeline = 2, data = 2;
  int stage = 0;
  Recompute recompute = Recompute::none;
  PipelineOrder schedule = PipelineOrder::zero_bubble;
  int chunks = 1;
  double group = 0;
  ScatterOption scatter = ScatterOption::automatic;
  bool tied = false;
  Precision type = Precision::bf16;
  ReduceType reduce = ReduceType::fp32;
  int micro_batches = 8;

  int world() const { return pipeline * data; }
};

std::string to_string(const Case& one) {
  return fmt::format(
      "pipeline {} x data {}, stage {}, {}, recompute {}, groups of {} MiB, scatter "
      "{}, {}, {}, reduce {}",
      one.pipeline, one.data, one.stage, name_of(one.schedule), name_of(one.recompute), one.group,
      name_of(one.scatter), one.tied ? "tied" : "untied", name_of(one.type), name_of(one.reduce));
}

PlanOptions job_of(const Case& one) {
  PlanOptions job;
  job.model = {.layers = 4,
               .width = 16,
               .heads = 2,
               .vocab = 32,
               .context = 8,
               .tied = one.tied,
               .recompute = one.recompute};
  job.train.steps = 1;
  job.train.batch = 2 * one.data * one.micro_batches;
  job.train.micro_batches = one.micro_batches;
  job.train.precision = one.type;
  job.train.reduce = one.reduce;
  job.optim.name = OptimizerKind::sgd;
  job.optim.momentum = 0;
  job.optim.warmup = 0;
  job.optim.schedule = RateSchedule::constant;
  job.optim.rate = rate;
  job.optim.clip = 0;
  job.optim.decay = 0;
  job.parallel = {.zero = one.stage, .pipeline = one.pipeline, .data = one.data};
  job.zero = {.group = one.group, .scatter = one.scatter};
  job.pipeline = {
      .schedule = one.schedule, .chunks = one.chunks, .balance = BalanceBy::count, .stages = {}};
  return job;
}

// For all parameters, concatenated as in all_parameters, in fp64: the initial values, the sum of
// the micro-batches' gradients, and the sum of their magnitudes.
struct Sums {
  at::Tensor first, sum, magnitude;
};

// Computes every micro-batch separately, in one process. A tied table is two tables with the same
// values here, because its two gradients come from two ranks.
Sums micro_batches_apart(const Case& one) {
  PlanOptions job = job_of(one);
  job.model.tied = false;
  job.model.recompute = Recompute::none;
  Stack stack = gpt(job.model);
  stack.allocate(at::kCPU, compute_type(job.train), Gradients::yes);
  MasterUpdate update(stack, job.optim);
  const std::string table = "transformer.wte.weight", head = "lm_head.weight";
  const ValueSource random = random_values(std::uint64_t(job.train.seed));
  update.load([&](const Parameter& parameter, at::Tensor out) {
    random(one.tied && parameter.name == head ? *stack.find(table) : parameter, out);
  });
  const auto flat = [&](const std::function<at::Tensor(const Parameter&)>& of) {
    std::vector<at::Tensor> all;
    for (const auto& p : stack.parameters())
      if (!one.tied || p.name != head) all.push_back(of(p).reshape({-1}).to(at::kDouble));
    return at::cat(all);
  };
  const at::Tensor masters = update.state().front().flat;
  Sums sums;
  sums.first =
      flat([&](const Parameter& p) { return masters.narrow(0, p.begin, p.numel()); }).clone();
  sums.sum = at::zeros_like(sums.first);
  sums.magnitude = at::zeros_like(sums.first);

  Executor executor(stack, &update, one_process(stack.size(), 1), {stack.size(), 1, {}});
  update.rate().fill_(0);
  const Sampler sampler(std::uint64_t(job.train.seed), tokens().size(), job.train.batch);
  const int pieces = one.data * one.micro_batches;
  const auto share = job.train.batch / pieces;
  for (int piece = 0; piece < pieces; ++piece) {
    const Batch data = tokens().get(sampler.indices(0, piece * share, (piece + 1) * share));
    executor.run(data, 1.0 / pieces);
    const auto add = [&](at::Tensor to, bool magnitude) {
      to.add_(flat([&](const Parameter& p) {
        const auto of = [&](const Parameter& q) {
          const at::Tensor grad = q.grad.to(at::kDouble);
          return magnitude ? grad.abs() : grad;
        };
        return one.tied && p.name == table ? of(p) + of(*stack.find(head)) : of(p);
      }));
    };
    add(sums.sum, false);
    add(sums.magnitude, true);
  }
  return sums;
}

// The distance of the masters after one step from those of the exact sum, in fp32 roundings of the
// largest number that was rounded on the way, element by element. Returns the largest of all
// elements.
double roundings_away(const Case& one) {
  at::set_num_threads(1);
  tokens();
  const Sums exact = micro_batches_apart(one);
  const PlanOptions job = job_of(one);
  double worst = 0;
  run_ranks_well({.world = one.world()}, [&](Group& group) {
    Stack stack = gpt(job.model);
    const auto trainer = tiny_trainer(job, stack, native_communicator(group.shared_from_this()));
    trainer->run();
    const at::Tensor seen = all_parameters(stack, *trainer).to(at::kDouble);
    if (group.rank() != 0) return;
    const at::Tensor rounding =
        (exact.first.abs() + rate * exact.magnitude) * std::exp2(-24) + 1e-30;
    worst = ((seen - (exact.first - rate * exact.sum)).abs() / rounding).max().item<double>();
  });
  return worst;
}

// A sum of 16 numbers rounds at most 15 times, and the update twice.
constexpr double most = 18;

void expect_fp32_sums(const Case& one) { EXPECT_LT(roundings_away(one), most) << to_string(one); }

TEST(Fp32Sums, HoldUnderZeroBubble) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto recompute : {Recompute::none, Recompute::full})
      expect_fp32_sums({.stage = stage, .recompute = recompute});
  expect_fp32_sums({.pipeline = 3, .data = 1});
  expect_fp32_sums({.pipeline = 3, .data = 1, .recompute = Recompute::full});
  expect_fp32_sums({.stage = 2, .recompute = Recompute::selective});
}

TEST(Fp32Sums, HoldIfAGroupHasSeveralLayers) {
  for (int stage = 1; stage <= 3; ++stage) {
    expect_fp32_sums({.stage = stage, .group = 100});
    expect_fp32_sums(
        {.stage = stage, .schedule = PipelineOrder::interleaved, .chunks = 2, .group = 100});
  }
}

TEST(Fp32Sums, HoldIfGradientsAreScatteredOncePerStep) {
  for (int stage = 2; stage <= 3; ++stage)
    for (const auto schedule :
         {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
      expect_fp32_sums({.stage = stage, .schedule = schedule, .scatter = ScatterOption::step});
  expect_fp32_sums({.pipeline = 1, .stage = 2, .scatter = ScatterOption::step});
}

TEST(Fp32Sums, HoldForTablesTiedAcrossStages) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto schedule : {PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
      expect_fp32_sums({.stage = stage, .schedule = schedule, .tied = true});
}

// The bound above distinguishes sums in bf16.
TEST(Fp32Sums, AreDistinguishedFromSumsInTheModelsType) {
  for (const int stage : {0, 2})
    EXPECT_GT(roundings_away({.stage = stage, .reduce = ReduceType::automatic}), 100 * most);
}

}  // namespace
}  // namespace echelon
