#include "echelon/step/walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "echelon/base/random.h"
#include "echelon/step/exchange.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Kind = Action::Kind;

StepCosts equal_layers(int layers, StepCosts::Layer each) {
  StepCosts costs;
  costs.layers.assign(std::size_t(layers), each);
  return costs;
}

StepShape with_buckets(int layers, int micro_batches) {
  StepShape shape{layers, micro_batches, {}};
  for (int l = layers; l-- > 0;) shape.buckets.push_back({l * 100, l * 100 + 100, l, l});
  return shape;
}

TEST(Walk, AddsUpOneProcess) {
  for (int layers = 1; layers <= 4; ++layers)
    for (int m = 1; m <= 3; ++m) {
      StepCosts costs = equal_layers(layers, {.forward = 2, .input = 3, .weight = 4, .kept = 10});
      costs.update = 5;
      const RankCosts sum = walk(one_process(layers, m), costs);
      EXPECT_EQ(sum.computing, layers * m * 9);
      EXPECT_EQ(sum.updating, 5);
      EXPECT_EQ(sum.end, layers * m * 9 + 5);
      EXPECT_EQ(sum.exposed, 0);
      EXPECT_EQ(sum.starved, 0);
      EXPECT_EQ(sum.activations.peak, layers * 10) << "one micro-batch is alive at a time";
      EXPECT_EQ(sum.activations.now, 0);
      EXPECT_TRUE(sum.bytes.empty());
    }
}

TEST(Walk, VisitsEveryActionInItsOrderWithItsTimes) {
  const Table table = one_process(3, 2);
  StepCosts costs = equal_layers(3, {.forward = 1, .input = 2, .weight = 3, .kept = 7});
  std::size_t next = 0;
  double clock = 0;
  walk(table, costs,
       [&](int rank, std::size_t index, const TimedAction& timed, const RankCosts& so_far) {
         EXPECT_EQ(rank, 0);
         EXPECT_EQ(index, next++);
         EXPECT_EQ(to_string(timed.action), to_string(table[index]));
         EXPECT_EQ(timed.begin, clock);
         if (timed.action.kind == Kind::forward) clock += 1;
         if (timed.action.kind == Kind::backward) clock += 5;
         EXPECT_EQ(timed.end, clock);
         EXPECT_EQ(so_far.end, clock);
         if (timed.action.kind == Kind::forward) {
           EXPECT_EQ(so_far.activations.now, 7 * (timed.action.layer + 1));
         }
       });
  EXPECT_EQ(next, table.size());
}

TEST(Walk, CountsWhatARecomputedLayerHolds) {
  StepShape shape{4, 2, {}};
  shape.recompute = {false, true, true, false};
  // The inputs of the two middle layers, and all of one of them or of the last layer.
  StepCosts costs = equal_layers(4, {.forward = 1, .input = 1, .weight = 1, .kept = 100});
  for (const std::size_t l : {1, 2}) costs.layers[l] = {1, 1, 1, /*kept=*/10, /*recomputed=*/90};
  const RankCosts sum = walk(one_process(shape), costs);
  EXPECT_EQ(sum.activations.peak, 100 + 10 + 10 + 100);
  EXPECT_EQ(sum.activations.now, 0);
  EXPECT_EQ(sum.computing, 2 * (4 * 3 + 2)) << "two layers run forward twice";
}

TEST(Walk, KeepsInputAndWeightPartsApart) {
  const Table table = {{Kind::forward, 0, 0}, {Kind::forward, 0, 1}, {Kind::input, 0, 0},
                       {Kind::input, 0, 1},   {Kind::weight, 0, 0},  {Kind::weight, 0, 1}};
  std::vector<std::int64_t> held;
  walk(table, equal_layers(1, {.kept = 10, .deferred = 4, .backward_workspace = 5}),
       [&](int, std::size_t, const TimedAction&, const RankCosts& so_far) {
         held.push_back(so_far.activations.now);
       });
  EXPECT_EQ(held, (std::vector<std::int64_t>{10, 20, 14, 8, 4, 0}));
  EXPECT_EQ(walk(table, equal_layers(1, {.kept = 10, .deferred = 4, .backward_workspace = 5}))
                .activations.peak,
            25);
}

TEST(Walk, HidesReductionsBehindBackward) {
  const int layers = 5;
  for (int micro_batches = 1; micro_batches <= 3; ++micro_batches)
    for (const double reduce : {1.0, 4.0, 6.0, 9.0}) {
      const StepShape shape = with_buckets(layers, micro_batches);
      StepCosts costs = equal_layers(layers, {.forward = 2, .input = 3, .weight = 3});
      costs.buckets.assign(std::size_t(layers), {.seconds = reduce, .bytes = 800});
      costs.update = 1;
      const RankCosts sum = walk(with_reductions(one_process(shape), shape), costs);
      // Cheap reductions finish before the next bucket is complete; expensive ones queue behind the
      // first.
      const double exposed = reduce <= 6 ? reduce : 6 + layers * reduce - layers * 6;
      EXPECT_EQ(sum.exposed, exposed) << micro_batches << " micro-batches, " << reduce;
      EXPECT_EQ(sum.exchanging, layers * reduce);
      EXPECT_EQ(sum.end, layers * micro_batches * 8 + exposed + 1);
      EXPECT_EQ(sum.sent(Purpose::gradients), layers * 800) << "once a step";
      EXPECT_EQ(sum.bytes.size(), 1U);
    }
}

TEST(Walk, ExplainsEverySecondOfAStep) {
  std::uint64_t drawn = 0;
  const auto below = [&](int n) { return int(uniform_at(1, drawn++) * n); };
  for (int i = 0; i < 50; ++i) {
    const int layers = 1 + below(5);
    const StepShape shape = with_buckets(layers, 1 + below(4));
    StepCosts costs;
    for (int l = 0; l < layers; ++l) {
      costs.layers.push_back({double(below(9)), double(below(9)), double(below(9))});
      costs.buckets.push_back({.seconds = double(below(30))});
    }
    costs.update = below(9);
    const RankCosts sum = walk(with_reductions(one_process(shape), shape), costs);
    EXPECT_EQ(sum.end, sum.computing + sum.updating + sum.starved + sum.exposed);
  }
}

TEST(Walk, FetchesAGroupBeforeItIsGathered) {
  const auto of = [](Kind kind, int group) { return Action{.kind = kind, .group = group}; };
  const Table table = {of(Kind::fetch, 0),       of(Kind::fetch, 1),        of(Kind::gather, 0),
                       of(Kind::gather, 1),      of(Kind::wait_unshard, 0), {Kind::forward, 0, 0},
                       of(Kind::wait_unshard, 1)};
  StepCosts costs = equal_layers(1, {.forward = 3});
  costs.groups.assign(2, {.fetch = {.seconds = 5}, .gather = {.seconds = 2, .bytes = 40}});
  std::vector<double> end;
  const RankCosts sum =
      walk(table, costs, [&](int, std::size_t, const TimedAction& timed, const RankCosts&) {
        end.push_back(timed.end);
      });
  EXPECT_EQ(end, (std::vector<double>{5, 10, 7, 12, 7, 10, 12}));
  EXPECT_EQ(sum.exposed, 7 + 2);
  EXPECT_EQ(sum.sent(Purpose::parameters), 80);
}

TEST(Walk, WaitsForTiedSumsAndPushesAtTheEnd) {
  StepCosts costs;
  costs.tie = {.seconds = 4, .bytes = 12};
  costs.push = {.seconds = 2, .bytes = 7};
  costs.update = 1;
  const RankCosts tied = walk({{Kind::synchronize}, {Kind::tie}, {Kind::update}}, costs);
  EXPECT_EQ(tied.end, 5);
  EXPECT_EQ(walk({{Kind::synchronize}, {Kind::tie}}, costs).end, 4) << "the tie itself waits";
  EXPECT_EQ(tied.exposed, 4);
  EXPECT_EQ(tied.sent(Purpose::tied_gradients), 12);
  const RankCosts pushed = walk(for_servers({.layers = 1}), costs);
  EXPECT_EQ(pushed.end, 2);
  EXPECT_EQ(pushed.updating, 0);
  EXPECT_EQ(pushed.sent(Purpose::push), 7);
}

// Layer 0 on the first rank and layer 1 on the second.
std::vector<Table> two_ranks(int micro_batches) {
  std::vector<Table> tables(2);
  for (int m = 0; m < micro_batches; ++m) {
    tables[0].push_back({Kind::forward, 0, m});
    tables[0].push_back({Kind::send, 0, m});
    for (const Kind kind : {Kind::receive, Kind::forward, Kind::backward, Kind::send_grad})
      tables[1].push_back({kind, 1, m});
  }
  for (int m = 0; m < micro_batches; ++m) {
    tables[0].push_back({Kind::receive_grad, 0, m});
    tables[0].push_back({Kind::backward, 0, m});
  }
  return tables;
}

TEST(Walk, WaitsForMessagesAndSendsOneAtATimeEachWay) {
  StepCosts costs = equal_layers(2, {.forward = 1, .input = 1, .weight = 1});
  costs.boundaries = {{.seconds = 4, .bytes = 16}};
  const auto ranks = walk(two_ranks(2), costs);
  // The messages arrive at 5 and 9; their gradients leave at 8 and 12 and arrive at 12 and 16.
  EXPECT_EQ(ranks[1].end, 12);
  EXPECT_EQ(ranks[1].starved, 5 + 1);
  EXPECT_EQ(ranks[0].end, 18);
  EXPECT_EQ(ranks[0].starved, 10 + 2);
  for (const RankCosts& rank : ranks) {
    EXPECT_EQ(rank.sent(Purpose::activations), 2 * 16);
    EXPECT_EQ(rank.computing, 6);
    EXPECT_EQ(rank.end, rank.computing + rank.starved);
  }
}

// The middle one of three ranks.
TEST(Walk, HoldsMessagesUntilTheyAreUsedOrHaveGone) {
  const Table table = {{Kind::receive, 1, 0},      {Kind::forward, 1, 0},  {Kind::send, 1, 0},
                       {Kind::receive_grad, 1, 0}, {Kind::backward, 1, 0}, {Kind::send_grad, 1, 0},
                       {Kind::synchronize},        {Kind::update}};
  StepCosts costs = equal_layers(2, {.forward = 1, .input = 1, .weight = 1, .kept = 3});
  costs.boundaries.assign(2, {.seconds = 10, .bytes = 20});
  std::vector<std::int64_t> held;
  std::vector<double> begin, end;
  const RankCosts sum =
      walk(table, costs, [&](int, std::size_t, const TimedAction& timed, const RankCosts& so_far) {
        held.push_back(so_far.activations.now);
        begin.push_back(timed.begin);
        end.push_back(timed.end);
      });
  // The gradient shows that the output has gone; the next send releases its memory.
  EXPECT_EQ(held, (std::vector<std::int64_t>{20, 3, 23, 43, 20, 20, 0, 0}));
  EXPECT_EQ(sum.activations.peak, 43);
  // The output and the gradient go in different directions at the same time.
  EXPECT_EQ(begin, (std::vector<double>{0, 0, 1, 1, 1, 3, 3, 13}));
  EXPECT_EQ(end, (std::vector<double>{0, 1, 11, 1, 3, 13, 13, 13}));
  EXPECT_EQ(sum.exposed, 10);
}

TEST(Walk, AssumesThatOtherRanksAreOnTime) {
  StepCosts costs = equal_layers(2, {.forward = 1, .input = 1, .weight = 1});
  costs.boundaries = {{.seconds = 4}};
  for (const Table& table : two_ranks(3)) {
    const RankCosts sum = walk(table, costs);
    EXPECT_EQ(sum.end, 9);
    EXPECT_EQ(sum.starved, 0);
  }
}

TEST(Walk, NamesRanksThatWaitForEachOther) {
  std::vector<Table> tables = two_ranks(1);
  tables[0] = {{Kind::receive_grad, 0, 0},
               {Kind::backward, 0, 0},
               {Kind::forward, 0, 0},
               {Kind::send, 0, 0}};
  try {
    walk(tables, {});
    FAIL() << "nothing was thrown";
  } catch (const Deadlock& deadlock) {
    EXPECT_STREQ(deadlock.what(),
                 "the ranks of the step wait for each other for ever: action 1 of rank 0, "
                 "backward(layer 0, micro-batch 0), waits for layer 1 of rank 1; action 1 of rank "
                 "1, forward(layer 1, micro-batch 0), waits for layer 0 of rank 0");
    ASSERT_EQ(deadlock.circle().size(), 2U);
    EXPECT_EQ(deadlock.circle()[1].rank, 1);
    EXPECT_EQ(deadlock.circle()[1].index, 1U);
    EXPECT_EQ(deadlock.circle()[1].layer, 0);
    EXPECT_EQ(deadlock.circle()[1].rank_of_layer, 0);
  }
}

TEST(Walk, RefusesTablesThatDoNotFitTogether) {
  std::vector<Table> tables = two_ranks(1);
  std::erase_if(tables[1], [](const Action& a) { return a.kind == Kind::send_grad; });
  EXPECT_EQ(thrown<InvalidArgument>([&] { walk(tables, {}); }),
            "action 3 of rank 0, backward(layer 0, micro-batch 0), waits for layer 1 of rank 1, "
            "which never sends it");
  tables[1] = tables[0];
  EXPECT_EQ(thrown<InvalidArgument>([&] { walk(tables, {}); }),
            "layer 0 is in the tables of ranks 0 and 1");
}

}  // namespace
}  // namespace echelon
