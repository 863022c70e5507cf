// Whole steps on the ranks of a pipeline, compared with one process.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/step/executor.h"
#include "tests/collective/ranks.h"
#include "tests/optim/plain_sgd.h"

namespace echelon {
namespace {

constexpr int blocks = 6, layers = blocks + 2;

Stack model() {
  return gpt({.layers = blocks, .width = 16, .heads = 2, .vocab = 32, .context = 8, .tied = false});
}

constexpr int steps = 3;
std::vector<Batch> batches_of(int samples) {
  at::manual_seed(1);
  std::vector<Batch> all;
  for (int i = 0; i < steps; ++i)
    all.push_back(
        {at::randint(32, {samples, 8}, at::kLong), at::randint(32, {samples, 8}, at::kLong)});
  return all;
}

struct Trained {
  std::vector<double> losses;
  Stack stack;
};

// A few steps of one process, or of a rank that has some of the layers.
Trained trained(const Table& table, StepShape shape, const std::vector<Batch>& batches,
                const Neighbours& neighbours = {}) {
  Trained result{{}, model()};
  Stack& stack = result.stack;
  if (!shape.own.empty()) stack.keep(shape.own);
  if (!shape.recompute.empty()) stack.recompute(Recompute::full);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  MasterUpdate update(stack, plain_sgd());
  update.load(random_values(1));
  Executor executor(stack, &update, table, std::move(shape), {.neighbours = neighbours});
  for (const Batch& batch : batches) {
    update.rate().fill_(0.5);
    result.losses.push_back(executor.run(batch).item<double>());
  }
  return result;
}

// As even as possible.
std::vector<StageLayers> even_stages(int stages) {
  std::vector<StageLayers> all;
  for (int s = 0; s < stages; ++s) all.push_back({layers * s / stages, layers * (s + 1) / stages});
  return all;
}

void expect_one_process(PipelineOrder name, const PipelineShape& shape, bool recompute = false,
                        int extra_samples = 0) {
  SCOPED_TRACE(fmt::format("{}, {} ranks, {} micro-batches, {} chunks", name_of(name), shape.ranks,
                           shape.micro_batches, shape.chunks));
  at::set_num_threads(1);
  const auto batches = batches_of(2 * shape.micro_batches + extra_samples);
  StepShape whole{layers, shape.micro_batches, {}};
  if (recompute) {
    whole.recompute.assign(layers, true);
    whole.recompute.back() = whole.recompute.front() = false;
  }
  Trained expected = trained(one_process(whole), whole, batches);
  const auto schedule = make_schedule(name, shape);
  const auto stages = even_stages(shape.stages());
  const auto owners = layer_owners(stages, shape);
  run_ranks_well({.world = shape.ranks}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    StepShape step = whole;
    for (const int owner : owners) step.own.push_back(owner == ranks->rank());
    Table table = pipeline_table(schedule, shape, ranks->rank(), stages, step);
    table.push_back({Action::Kind::synchronize});
    table.push_back({Action::Kind::update});
    Trained seen = trained(table, step, batches, {ranks, owners});
    for (std::size_t i = 0; i < seen.losses.size(); ++i)
      EXPECT_NEAR(seen.losses[i], expected.losses[i], 1e-12);
    for (const auto& parameter : seen.stack.parameters()) {
      if (!parameter.here) continue;
      const auto& other = expected.stack.find(parameter.name)->value;
      EXPECT_LT((parameter.value - other).abs().max().item<double>(), 1e-12) << parameter.name;
    }
  });
}

TEST(Pipeline, EqualsOneProcessUnderEverySchedule) {
  for (const auto name :
       {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
    for (int ranks = 2; ranks <= 4; ++ranks)
      for (const int micro_batches : {1, 2, 3, 5})
        expect_one_process(name, {.ranks = ranks, .micro_batches = micro_batches});
}

TEST(Pipeline, EqualsOneProcessWithSeveralChunksPerRank) {
  for (const int chunks : {2, 4})
    for (const int micro_batches : {2, 4, 6})
      expect_one_process(PipelineOrder::interleaved,
                         {.ranks = 2, .micro_batches = micro_batches, .chunks = chunks});
  expect_one_process(PipelineOrder::interleaved, {.ranks = 4, .micro_batches = 8, .chunks = 2});
}

TEST(Pipeline, EqualsOneProcessWithRecompute) {
  expect_one_process(PipelineOrder::one_f_one_b, {.ranks = 2, .micro_batches = 4}, true);
  expect_one_process(PipelineOrder::zero_bubble, {.ranks = 3, .micro_batches = 4}, true);
}

// Micro-batches of unequal sizes: 2 m + 1 samples.
TEST(Pipeline, EqualsOneProcessWithUnevenMicroBatches) {
  expect_one_process(PipelineOrder::one_f_one_b, {.ranks = 2, .micro_batches = 3}, false, 1);
  expect_one_process(PipelineOrder::zero_bubble, {.ranks = 2, .micro_batches = 4}, false, 3);
}

// A forward sends one tensor of b s h per boundary and micro-batch, and a backward sends as much.
TEST(Pipeline, SendsAnActivationAndItsGradientOverEachBoundary) {
  at::set_num_threads(1);
  const PipelineShape shape{.ranks = 3, .micro_batches = 4};
  const auto schedule = make_schedule(PipelineOrder::one_f_one_b, shape);
  const auto stages = even_stages(3);
  const auto owners = layer_owners(stages, shape);
  const auto batches = batches_of(8);
  run_ranks_well({.world = 3}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    StepShape step{layers, 4, {}};
    for (const int owner : owners) step.own.push_back(owner == ranks->rank());
    Table table = pipeline_table(schedule, shape, ranks->rank(), stages, step);
    table.push_back({Action::Kind::synchronize});
    table.push_back({Action::Kind::update});
    trained(table, step, batches, {ranks, owners});
    std::uint64_t bytes = 0;
    for (const auto& entry : ranks->ledger().entries())
      if (entry.tag == "activations") bytes += entry.bytes;
    const int messages = ranks->rank() == 1 ? 2 : 1;  // up and down, or only one of them
    EXPECT_EQ(bytes, std::uint64_t(messages) * steps * 4 * (2 * 8 * 16) * 8);
  });
}

}  // namespace
}  // namespace echelon
