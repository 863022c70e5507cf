#include "echelon/parallel/pipeline/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Kind = Slot::Kind;

std::vector<StageCosts> equal_costs(const PipelineShape& shape, StageCosts each = {1, 1, 1}) {
  return std::vector<StageCosts>(std::size_t(shape.stages()), each);
}

Timeline simulated(PipelineOrder name, const PipelineShape& shape, StageCosts each = {1, 1, 1},
                   double transfer = 0) {
  return simulate(make_schedule(name, shape), shape, equal_costs(shape, each), transfer);
}

std::string words(PipelineOrder name, const PipelineShape& shape) {
  return std::string(name_of(name)) + " of " + std::to_string(shape.ranks) + " ranks, " +
         std::to_string(shape.micro_batches) + " micro-batches, " + std::to_string(shape.chunks) +
         " chunks";
}

// Begin and end of a rank's slots, in sequence.
std::vector<double> times(const Timeline& timeline, std::size_t rank) {
  std::vector<double> all;
  for (const TimedSlot& one : timeline.ranks[rank]) {
    all.push_back(one.begin);
    all.push_back(one.end);
  }
  return all;
}

TEST(PipelineSimulation, HasTheBubbleOfTheFormulas) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      for (const auto name :
           {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble}) {
        const PipelineShape shape{p, m, 1};
        EXPECT_NEAR(simulated(name, shape).bubble(), ideal_bubble(name, shape), 1e-9)
            << words(name, shape);
      }
      for (int v = 1; v <= 4 && m % p == 0; ++v) {
        const PipelineShape shape{p, m, v};
        EXPECT_NEAR(simulated(PipelineOrder::interleaved, shape).bubble(),
                    ideal_bubble(PipelineOrder::interleaved, shape), 1e-9)
            << words(PipelineOrder::interleaved, shape);
      }
    }
}

TEST(PipelineSimulation, PrintsTheFormulasOfTheBubbleAndTheIdleTime) {
  EXPECT_EQ(ideal_bubble_text(PipelineOrder::one_f_one_b, {4, 8, 1}), "(p-1)/m = 3/8 = 37.5 %");
  EXPECT_EQ(ideal_idle_text(PipelineOrder::one_f_one_b, {4, 8, 1}),
            "(p-1)/(m+p-1) = 3/11 = 27.3 %");
  EXPECT_EQ(ideal_bubble_text(PipelineOrder::interleaved, {4, 8, 2}),
            "(p-1)/(v m) = 3/16 = 18.8 %");
  EXPECT_EQ(ideal_idle_text(PipelineOrder::interleaved, {4, 8, 2}),
            "(p-1)/(v m+p-1) = 3/19 = 15.8 %");
  EXPECT_EQ(ideal_bubble_text(PipelineOrder::zero_bubble, {4, 8, 1}), "(p-1)/(3m) = 3/24 = 12.5 %");
  EXPECT_EQ(ideal_idle_text(PipelineOrder::zero_bubble, {4, 2, 1}),
            "(2p-1-m)/(3m+2p-1-m) = 5/11 = 45.5 %");
  EXPECT_NEAR(simulated(PipelineOrder::zero_bubble, {4, 2, 1}).idle(0), 5 / 11.0, 1e-9);
}

TEST(PipelineSimulation, HasTheBubbleThatThePapersGive) {
  for (int p = 2; p <= 8; ++p)
    for (int m = p; m <= 4 * p; ++m) {
      const double plain = (p - 1.0) / m;
      EXPECT_NEAR(ideal_bubble(PipelineOrder::gpipe, {p, m, 1}), plain, 1e-9);
      EXPECT_NEAR(ideal_bubble(PipelineOrder::one_f_one_b, {p, m, 1}), plain, 1e-9);
      EXPECT_NEAR(ideal_bubble(PipelineOrder::zero_bubble, {p, m, 1}), plain / 3, 1e-9);
      for (int v = 1; v <= 4 && m % p == 0; ++v)
        EXPECT_NEAR(ideal_bubble(PipelineOrder::interleaved, {p, m, v}), plain / v, 1e-9);
    }
  EXPECT_NEAR(simulated(PipelineOrder::one_f_one_b, {4, 8, 1}).end(), 33, 1e-9);
  EXPECT_NEAR(simulated(PipelineOrder::zero_bubble, {4, 8, 1}).end(), 27, 1e-9);
  EXPECT_NEAR(simulated(PipelineOrder::zero_bubble, {4, 2, 1}).end(), 11, 1e-9)
      << "fewer than ranks";
  EXPECT_NEAR(simulated(PipelineOrder::interleaved, {4, 8, 2}).end(), 57, 1e-9);
}

TEST(PipelineSimulation, HasTheSameBubbleWhateverABackwardCosts) {
  for (const double forward : {0.3, 1.0, 2.7})
    for (int p = 2; p <= 8; ++p)
      for (int m = p; m <= 4 * p; m += p) {
        const StageCosts costs{forward, 0.9, 1.3};
        for (const auto name : {PipelineOrder::gpipe, PipelineOrder::one_f_one_b})
          EXPECT_NEAR(simulated(name, {p, m, 1}, costs).bubble(), ideal_bubble(name, {p, m, 1}),
                      1e-9)
              << forward << ", " << words(name, {p, m, 1});
        EXPECT_NEAR(simulated(PipelineOrder::interleaved, {p, m, 3}, costs).bubble(),
                    ideal_bubble(PipelineOrder::interleaved, {p, m, 3}), 1e-9)
            << forward << ", " << words(PipelineOrder::interleaved, {p, m, 3});
      }
}

TEST(PipelineSimulation, MatchesQiForPartsOfUnequalCostUnlessTheWeightPartIsLong) {
  const auto formula = [](int p, int m, const StageCosts& c) {
    return (p - 1) * (c.forward + c.input - c.weight) / (m * (c.forward + c.input + c.weight));
  };
  for (int p = 2; p <= 8; ++p)
    for (int m = p; m <= 4 * p; ++m) {
      for (const StageCosts costs : {StageCosts{1, 1.2, 0.7}, StageCosts{1.3, 1, 1}})
        EXPECT_NEAR(simulated(PipelineOrder::zero_bubble, {p, m, 1}, costs).bubble(),
                    formula(p, m, costs), 1e-9)
            << words(PipelineOrder::zero_bubble, {p, m, 1});
      const StageCosts long_weight{1, 1, 1.2};
      EXPECT_GT(simulated(PipelineOrder::zero_bubble, {p, m, 1}, long_weight).bubble(),
                formula(p, m, long_weight) + 1e-3)
          << words(PipelineOrder::zero_bubble, {p, m, 1});
    }
}

// Rank 0: forward 1, backward 2. Rank 1: forward 2, backward 3.
//
// Rank 0 runs F0 F1 B0 F2 B1 B2, rank 1 F0 B0 F1 B1 F2 B2. Rank 1 gets its first input at time 1
// and is busy from then on, 5 per micro-batch, so it ends at 16. Rank 0 then gets the last gradient
// and needs 2 more.
TEST(PipelineSimulation, TimesUnequalStagesAsComputedByHand) {
  const PipelineShape shape{2, 3, 1};
  const Timeline timeline = simulate(one_f_one_b(shape), shape, {{1, 1, 1}, {2, 2, 1}});
  EXPECT_EQ(times(timeline, 0), (std::vector<double>{0, 1, 1, 2, 6, 8, 8, 9, 11, 13, 16, 18}));
  EXPECT_EQ(times(timeline, 1), (std::vector<double>{1, 3, 3, 6, 6, 8, 8, 11, 11, 13, 13, 16}));
  EXPECT_EQ(timeline.end(), 18);
  EXPECT_EQ(timeline.busy(0), 9);
  EXPECT_EQ(timeline.busy(1), 15);
  EXPECT_DOUBLE_EQ(timeline.idle(0), 9.0 / 18);
  EXPECT_DOUBLE_EQ(timeline.idle(1), 3.0 / 18);
  EXPECT_DOUBLE_EQ(timeline.bubble(), 3.0 / 15);
}

// One micro-batch forward and back, 2 and 1 forward, 2 and 3 backward: 8 in total. The first rank
// works 5 of them, longer than the second.
TEST(PipelineSimulation, MeasuresTheBubbleAgainstTheBusiestRank) {
  const PipelineShape shape{2, 1, 1};
  const Timeline timeline = simulate(gpipe(shape), shape, {{2, 2, 1}, {1, 1, 1}});
  EXPECT_EQ(timeline.end(), 8);
  EXPECT_DOUBLE_EQ(timeline.bubble(), 3.0 / 5);
}

// The three micro-batches above with transfers of half a second. Rank 1 begins that much later and
// is then busy as before, because what rank 0 sends meanwhile arrives in time. The last gradient
// takes the same time again.
TEST(PipelineSimulation, DelaysOnlySlotsThatWaitForATransfer) {
  const PipelineShape shape{2, 3, 1};
  const Timeline timeline = simulate(one_f_one_b(shape), shape, {{1, 1, 1}, {2, 2, 1}}, 0.5);
  EXPECT_EQ(times(timeline, 0), (std::vector<double>{0, 1, 1, 2, 7, 9, 9, 10, 12, 14, 17, 19}));
  EXPECT_EQ(times(timeline, 1),
            (std::vector<double>{1.5, 3.5, 3.5, 6.5, 6.5, 8.5, 8.5, 11.5, 11.5, 13.5, 13.5, 16.5}));
}

TEST(PipelineSimulation, TakesTransfersByBoundaryBothWays) {
  const PipelineShape shape{3, 1, 1};
  const Timeline timeline = simulate(gpipe(shape), shape, equal_costs(shape), {0.25, 2});
  EXPECT_EQ(times(timeline, 0), (std::vector<double>{0, 1, 11.5, 13.5}));
  EXPECT_EQ(times(timeline, 1), (std::vector<double>{1.25, 2.25, 9.25, 11.25}));
  EXPECT_EQ(times(timeline, 2), (std::vector<double>{4.25, 5.25, 5.25, 7.25}));
}

TEST(PipelineSimulation, SendsOneAfterTheOtherOverALink) {
  const PipelineShape shape{2, 3, 1};
  const Timeline timeline = simulated(PipelineOrder::gpipe, shape, {1, 1, 1}, 3);
  EXPECT_EQ(times(timeline, 0), (std::vector<double>{0, 1, 1, 2, 2, 3, 16, 18, 19, 21, 22, 24}));
  EXPECT_EQ(times(timeline, 1), (std::vector<double>{4, 5, 7, 8, 10, 11, 11, 13, 13, 15, 15, 17}));
}

TEST(PipelineSimulation, SendsNothingWithinARank) {
  const Timeline timeline = simulated(PipelineOrder::interleaved, {1, 5, 3}, {1, 1, 1}, 100);
  EXPECT_EQ(timeline.end(), 45);
  EXPECT_EQ(timeline.bubble(), 0);
}

TEST(PipelineSimulation, HidesLongerTransfersIfRanksBeginWithMoreForwards) {
  const PipelineShape shape{4, 16, 1};
  for (const double transfer : {0.1, 0.5, 1.0})
    EXPECT_LT(simulated(PipelineOrder::interleaved, shape, {1, 1, 1}, transfer).end(),
              simulated(PipelineOrder::one_f_one_b, shape, {1, 1, 1}, transfer).end());
}

TEST(PipelineSimulation, RejectsMissingNegativeAndNonFiniteNumbers) {
  const PipelineShape shape{2, 2, 1};
  const auto refusal = [&](const std::vector<StageCosts>& costs,
                           const std::vector<double>& transfer) {
    return thrown<InvalidArgument>([&] { simulate(gpipe(shape), shape, costs, transfer); });
  };
  EXPECT_EQ(refusal({{1, 1, 1}}, {0}), "a pipeline of 2 stages has costs for 1");
  EXPECT_EQ(refusal(equal_costs(shape), {}),
            "a pipeline of 2 stages has transfer times for 0 boundaries");
  EXPECT_EQ(refusal({{1, 1, 1}, {1, -2, 1}}, {0}),
            "stage 1 of the pipeline takes a time of 0 or more seconds: -2 is none");
  EXPECT_EQ(refusal(equal_costs(shape), {std::numeric_limits<double>::quiet_NaN()}),
            "a transfer from stage 0 to the next takes a time of 0 or more seconds: nan is none");
}

TEST(PipelineSimulation, ThrowsIfRanksDeadlock) {
  const PipelineShape shape{2, 2, 1};
  PipelineSchedule schedule = gpipe(shape);
  std::swap(schedule[0][1], schedule[0][2]);
  EXPECT_EQ(thrown<InvalidArgument>([&] { simulate(schedule, shape, equal_costs(shape)); }),
            "the ranks of the pipeline wait for each other for ever: slot 1 of rank 0, "
            "backward(chunk 0, micro-batch 0), waits for chunk 0 of rank 1; slot 1 of rank 1, "
            "forward(chunk 0, micro-batch 1), waits for chunk 0 of rank 0");
}

// The first slot that begins before its rank is free or its input has arrived; "" if none does.
std::string too_early(const Timeline& timeline, const PipelineShape& shape, double transfer) {
  const auto at = [&](int stage, int m) {
    return std::size_t(stage) * std::size_t(shape.micro_batches) + std::size_t(m);
  };
  std::vector<double> forwards(at(shape.stages(), 0)), backwards(at(shape.stages(), 0));
  const double sent = shape.ranks > 1 ? transfer : 0;
  const auto visit = [&](auto&& each) {
    for (int rank = 0; rank < shape.ranks; ++rank)
      for (const TimedSlot& one : timeline.ranks[std::size_t(rank)])
        each(one, shape.stage(rank, one.slot.chunk));
  };
  visit([&](const TimedSlot& one, int stage) {
    if (one.slot.kind == Kind::forward) forwards[at(stage, one.slot.micro_batch)] = one.end;
    if (one.slot.kind == Kind::backward || one.slot.kind == Kind::input)
      backwards[at(stage, one.slot.micro_batch)] = one.end;
  });
  std::string found;
  visit([&](const TimedSlot& one, int stage) {
    const int m = one.slot.micro_batch;
    double earliest = 0;
    if (one.slot.kind == Kind::forward) {
      if (stage > 0) earliest = forwards[at(stage - 1, m)] + sent;
    } else if (one.slot.kind == Kind::weight) {
      earliest = backwards[at(stage, m)];
    } else {
      earliest = forwards[at(stage, m)];
      if (stage + 1 < shape.stages())
        earliest = std::max(earliest, backwards[at(stage + 1, m)] + sent);
    }
    if (one.begin < earliest && found.empty())
      found = "stage " + std::to_string(stage) + ", " + to_string(one.slot);
  });
  for (const auto& slots : timeline.ranks)
    for (std::size_t i = 1; i < slots.size() && found.empty(); ++i)
      if (slots[i].begin < slots[i - 1].end) found = "two at once: " + to_string(slots[i].slot);
  return found;
}

// Whatever the costs, no slot begins too early, and the step takes at least the work of its busiest
// rank and at most the sum of all work.
TEST(PipelineSimulation, KeepsEveryDependencyOfTenThousandRandomPipelines) {
  const Key key = derive_key(1, "random pipelines");
  std::uint64_t counter = 0;
  const auto below = [&](int n) { return int(uniform_at(key, counter++) * n); };
  for (int round = 0; round < 10'000; ++round) {
    const PipelineOrder name = all_values<PipelineOrder>[std::size_t(below(4))];
    PipelineShape shape{1 + below(8), 1 + below(32), 1};
    if (name == PipelineOrder::interleaved) {
      shape.micro_batches = shape.ranks * (1 + below(4));
      shape.chunks = 1 + below(4);
    }
    const PipelineSchedule schedule = make_schedule(name, shape);
    ASSERT_NO_THROW(validate(schedule, shape)) << words(name, shape);
    std::vector<StageCosts> costs;
    double longest = 0, sum = 0;  // of a rank's work; of all work
    for (int stage = 0; stage < shape.stages(); ++stage)
      costs.push_back({0.5 + uniform_at(key, counter++), uniform_at(key, counter++), 0.5});
    const double transfer = uniform_at(key, counter++);
    const Timeline timeline = simulate(schedule, shape, costs, transfer);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      double work = 0;
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const StageCosts& c = costs[std::size_t(shape.stage(rank, chunk))];
        work += (c.forward + c.input + c.weight) * shape.micro_batches;
      }
      ASSERT_NEAR(timeline.busy(rank), work, 1e-9 * work) << words(name, shape);
      longest = std::max(longest, work);
      sum += work;
    }
    ASSERT_EQ(too_early(timeline, shape, transfer), "") << words(name, shape);
    ASSERT_GE(timeline.end(), longest * (1 - 1e-12)) << words(name, shape);
    ASSERT_LE(timeline.end(), sum + 2 * transfer * shape.stages() * shape.micro_batches)
        << words(name, shape);
  }
}

}  // namespace
}  // namespace echelon
