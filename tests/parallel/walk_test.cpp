// Walks over the tables of strategies, compared with the closed forms of their papers.
#include "echelon/step/walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/step/exchange.h"
#include "echelon/step/shards.h"

namespace echelon {
namespace {

constexpr int layers_a_stage = 3;

std::vector<StageLayers> stages_of(const PipelineShape& shape) {
  std::vector<StageLayers> stages;
  for (int s = 0; s < shape.stages(); ++s)
    stages.push_back({s * layers_a_stage, (s + 1) * layers_a_stage});
  return stages;
}

// Every second layer may be recomputed.
std::vector<Table> pipeline(PipelineOrder schedule, const PipelineShape& shape,
                            bool recompute = false) {
  const auto stages = stages_of(shape);
  const auto owners = layer_owners(stages, shape);
  std::vector<Table> tables;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    StepShape step{shape.stages() * layers_a_stage, shape.micro_batches, {}};
    for (const int owner : owners) step.own.push_back(owner == rank);
    for (int l = 0; l < step.layers && recompute; ++l) step.recompute.push_back(l % 2 == 1);
    tables.push_back(with_reductions(
        pipeline_table(make_schedule(schedule, shape), shape, rank, stages, step), step));
    validate(tables.back(), step);
  }
  return tables;
}

StepCosts costs_of(const PipelineShape& shape) {
  StepCosts costs;
  const auto layers = std::size_t(shape.stages() * layers_a_stage);
  costs.layers.assign(layers, {.forward = 1, .input = 1, .weight = 1, .kept = 1, .deferred = 1});
  return costs;
}

template <class Check>
void for_each_pipeline(const Check& check) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 3 * p; ++m)
      for (const PipelineOrder name : all_values<PipelineOrder>) {
        if (name == PipelineOrder::interleaved && m % p != 0) continue;
        const PipelineShape shape{p, m, name == PipelineOrder::interleaved ? 2 : 1};
        SCOPED_TRACE(std::string(name_of(name)) + " of " + std::to_string(p) + " ranks, " +
                     std::to_string(m) + " micro-batches");
        check(name, shape);
      }
}

TEST(PipelineWalk, IdlesForTheBubbleOfTheFormulas) {
  for_each_pipeline([](PipelineOrder name, const PipelineShape& shape) {
    double end = 0, computing = 0;
    for (const RankCosts& rank : walk(pipeline(name, shape), costs_of(shape))) {
      end = std::max(end, rank.end);
      computing = std::max(computing, rank.computing);
      EXPECT_EQ(rank.end, rank.computing + rank.starved);
    }
    EXPECT_NEAR(end / computing - 1, ideal_bubble(name, shape), 1e-9);
    if (name == PipelineOrder::gpipe || name == PipelineOrder::one_f_one_b) {
      const double p = shape.ranks, m = shape.micro_batches;
      EXPECT_NEAR(1 - computing / end, (p - 1) / (m + p - 1), 1e-9);
    }
  });
}

TEST(PipelineWalk, KeepsTheActivationsOfTheFormulas) {
  for_each_pipeline([](PipelineOrder name, const PipelineShape& shape) {
    const auto ranks = walk(pipeline(name, shape), costs_of(shape));
    for (int rank = 0; rank < shape.ranks; ++rank) {
      EXPECT_EQ(ranks[std::size_t(rank)].activations.peak,
                layers_a_stage * closed_form_activations(name, shape, rank))
          << "rank " << rank;
      EXPECT_EQ(ranks[std::size_t(rank)].activations.now, 0);
    }
  });
}

TEST(PipelineWalk, SendsEveryBoundaryOnceEachWay) {
  for_each_pipeline([](PipelineOrder name, const PipelineShape& shape) {
    StepCosts costs = costs_of(shape);
    costs.boundaries.assign(costs.layers.size() - 1, {.bytes = 10});
    std::int64_t sent = 0;
    for (const RankCosts& rank : walk(pipeline(name, shape), costs)) {
      sent += rank.sent(Purpose::activations);
      EXPECT_EQ(rank.activations.now, 0) << "all messages have gone";
    }
    const int boundaries = shape.ranks > 1 ? shape.stages() - 1 : 0;
    EXPECT_EQ(sent, 2 * boundaries * shape.micro_batches * 10);
  });
}

TEST(PipelineWalk, RunsTheSlotsOfItsSchedule) {
  for_each_pipeline([](PipelineOrder name, const PipelineShape& shape) {
    for (const bool recompute : {false, true}) {
      std::vector<std::vector<TimedAction>> actions(std::size_t(shape.ranks));
      const auto sums =
          walk(pipeline(name, shape, recompute), costs_of(shape),
               [&](int rank, std::size_t, const TimedAction& timed, const RankCosts&) {
                 actions[std::size_t(rank)].push_back(timed);
               });
      const PipelineSchedule schedule = make_schedule(name, shape);
      for (std::size_t rank = 0; rank < schedule.size(); ++rank) {
        Order order;
        double computing = 0;
        for (const auto& [slot, begin, end] : slots_of(actions[rank], stages_of(shape), shape)) {
          order.push_back(slot);
          computing += end - begin;
        }
        EXPECT_EQ(order, schedule[rank]) << "rank " << rank;
        // A recompute is part of its slot. A recompute that comes first does not wait for the
        // gradient that its backward waits for.
        EXPECT_GE(computing, sums[rank].computing);
        if (!recompute) {
          EXPECT_EQ(computing, sums[rank].computing);
        }
      }
    }
  });
}

constexpr std::int64_t group_bytes = 100;

StepShape sharded(int layers, int micro_batches, bool values) {
  StepShape shape{layers, micro_batches, {}};
  for (int l = 0; l < layers; ++l) shape.uses.push_back({l});
  shape.groups = layers;
  shape.sliced_values = values;
  shape.sliced_gradients = true;
  return shape;
}

StepCosts group_costs(int layers) {
  StepCosts costs;
  costs.layers.assign(std::size_t(layers), {.forward = 2, .input = 2, .weight = 2});
  costs.groups.assign(std::size_t(layers), {.gather = {.seconds = 1, .bytes = 25},
                                            .scatter = {.seconds = 1, .bytes = group_bytes},
                                            .values = group_bytes,
                                            .gradients = group_bytes});
  return costs;
}

Table zero_table(const StepShape& shape, std::int64_t prefetch, Scatter scatter) {
  const std::vector<std::int64_t> bytes(std::size_t(shape.groups), group_bytes);
  const Table table = with_shards(one_process(shape), shape, bytes, prefetch, scatter);
  validate(table, shape);
  return table;
}

TEST(ZeroWalk, HoldsAsManyGroupsAsPrefetchAllowsAndAtLeastTwo) {
  for (int layers = 1; layers <= 6; ++layers)
    for (int m = 1; m <= 3; ++m)
      for (int groups = 0; groups <= 8; ++groups) {
        const StepShape shape = sharded(layers, m, true);
        const RankCosts sum = walk(zero_table(shape, groups * group_bytes, Scatter::micro_batch),
                                   group_costs(layers));
        EXPECT_EQ(sum.values.peak, std::min(layers, std::max(groups, 2)) * group_bytes)
            << layers << " layers, prefetch of " << groups;
        EXPECT_EQ(sum.values.now, 0);
        EXPECT_EQ(sum.gradients.peak, std::min(layers, int(Shards::most_scattering)) * group_bytes);
        EXPECT_EQ(sum.gradients.now, 0);
      }
}

TEST(ZeroWalk, CountsGathersAndScattersByFormula) {
  const int layers = 5;
  for (int m = 1; m <= 3; ++m) {
    const StepShape shape = sharded(layers, m, true);
    // The last group is kept from forward to backward, the first from one micro-batch to the next.
    const int gathers = m * (2 * layers - 2) + 1;
    for (const Scatter scatter : {Scatter::micro_batch, Scatter::step}) {
      const RankCosts sum = walk(zero_table(shape, 0, scatter), group_costs(layers));
      EXPECT_EQ(sum.sent(Purpose::parameters), gathers * 25);
      const int scatters = scatter == Scatter::step ? layers : m * layers;
      EXPECT_EQ(sum.sent(Purpose::gradients), scatters * group_bytes);
      EXPECT_EQ(sum.exchanging, gathers + scatters);
    }
  }
}

TEST(ZeroWalk, HoldsAllGradientsIfScatteredOncePerStep) {
  const StepShape shape = sharded(4, 3, false);
  const RankCosts sum = walk(zero_table(shape, 0, Scatter::step), group_costs(4));
  EXPECT_EQ(sum.gradients.peak, 4 * group_bytes);
  EXPECT_EQ(sum.gradients.now, 0);
  EXPECT_EQ(sum.values.peak, 0) << "every rank has all values";
}

TEST(ZeroWalk, WaitsOnlyForTheFirstGatherAndTheLastScatter) {
  const StepShape shape = sharded(4, 1, true);
  const RankCosts sum = walk(zero_table(shape, 0, Scatter::micro_batch), group_costs(4));
  EXPECT_EQ(sum.exposed, 2);
  EXPECT_EQ(sum.end, sum.computing + 2);
  // Transfers that take longer than the computation between them run without a gap.
  StepCosts slow = group_costs(4);
  for (auto& group : slow.groups) group.gather.seconds = group.scatter.seconds = 10;
  const RankCosts bound = walk(zero_table(shape, 0, Scatter::micro_batch), slow);
  EXPECT_EQ(bound.exchanging, 110);
  EXPECT_EQ(bound.end, bound.exchanging);
}

}  // namespace
}  // namespace echelon
