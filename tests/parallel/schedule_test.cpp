#include "echelon/parallel/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Kind = Slot::Kind;

std::string refusal(const PipelineSchedule& schedule, const PipelineShape& shape,
                    const std::vector<int>& most_activations = {}) {
  return thrown<InvalidArgument>([&] { validate(schedule, shape, most_activations); });
}
std::string refusal(PipelineOrder name, const PipelineShape& shape) {
  return thrown<InvalidArgument>([&] { make_schedule(name, shape); });
}
constexpr auto accepted = "(nothing was thrown)";

bool possible(PipelineOrder name, const PipelineShape& shape) {
  return name == PipelineOrder::interleaved ? shape.micro_batches % shape.ranks == 0
                                            : shape.chunks == 1;
}

// All shapes that a schedule supports, with up to 8 ranks, 4 micro-batches per rank and 4 chunks.
template <class Visit>
void for_all(PipelineOrder name, Visit&& visit) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m)
      for (int v = 1; v <= 4; ++v)
        if (const PipelineShape shape{p, m, v}; possible(name, shape)) visit(shape);
}

std::string words(PipelineOrder name, const PipelineShape& shape) {
  return std::string(name_of(name)) + " of " + std::to_string(shape.ranks) + " ranks, " +
         std::to_string(shape.micro_batches) + " micro-batches, " + std::to_string(shape.chunks) +
         " chunks";
}

// An independent judge: each tensor is stored and taken away once. A slot whose input is missing
// waits. The schedule runs if in the end nothing waits and nothing is left over.
bool runs(const PipelineSchedule& schedule, const PipelineShape& shape) {
  enum What { activation, kept, gradient, kept_for_weight, complete };
  std::set<std::tuple<What, int, int>> store;
  std::map<std::size_t, std::size_t> at;
  for (int m = 0; m < shape.micro_batches; ++m) store.insert({activation, 0, m});
  const auto run = [&](std::size_t rank, const Slot& slot) {
    const int stage = shape.stage(int(rank), slot.chunk), m = slot.micro_batch;
    if (slot.chunk < 0 || slot.chunk >= shape.chunks) return false;
    if (slot.kind == Kind::weight) {
      if (store.erase({kept_for_weight, stage, m}) == 0) return false;
      return store.insert({complete, stage, m}).second;
    }
    if (slot.kind == Kind::forward) {
      if (store.erase({activation, stage, m}) == 0) return false;
      const bool last = stage + 1 == shape.stages();
      store.insert({last ? gradient : activation, last ? stage : stage + 1, m});
      return store.insert({kept, stage, m}).second;
    }
    if (!store.contains({kept, stage, m}) || store.erase({gradient, stage, m}) == 0) return false;
    store.erase({kept, stage, m});
    if (stage > 0) store.insert({gradient, stage - 1, m});
    return store.insert({slot.kind == Kind::input ? kept_for_weight : complete, stage, m}).second;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < schedule.size(); ++rank)
      for (auto& i = at[rank]; i < schedule[rank].size() && run(rank, schedule[rank][i]); ++i)
        moved = true;
  }
  for (std::size_t rank = 0; rank < schedule.size(); ++rank)
    if (at[rank] != schedule[rank].size()) return false;
  const auto done = std::ranges::count_if(
      store, [](const auto& tensor) { return std::get<0>(tensor) == complete; });
  return std::size_t(done) == store.size() && done == shape.stages() * shape.micro_batches;
}

// Random numbers that a test can repeat.
class Draw {
 public:
  explicit Draw(std::string_view purpose) : key_(derive_key(1, purpose)) {}
  std::size_t below(std::size_t n) { return std::size_t(uniform_at(key_, counter_++) * double(n)); }
  int from_1_to(int n) { return 1 + int(below(std::size_t(n))); }

 private:
  Key key_;
  std::uint64_t counter_ = 0;
};

TEST(PipelineSchedules, RunForEveryShapeWithTheActivationsOfTheirFormulas) {
  for (const PipelineOrder name : all_values<PipelineOrder>)
    for_all(name, [&](const PipelineShape& shape) {
      const PipelineSchedule schedule = make_schedule(name, shape);
      std::vector<int> formulas;
      for (int rank = 0; rank < shape.ranks; ++rank) {
        formulas.push_back(closed_form_activations(name, shape, rank));
        EXPECT_EQ(peak_activations(schedule, rank), formulas.back())
            << words(name, shape) << ", rank " << rank;
      }
      EXPECT_EQ(refusal(schedule, shape, formulas), accepted) << words(name, shape);
      EXPECT_TRUE(runs(schedule, shape)) << words(name, shape);
    });
}

TEST(PipelineSchedules, HoldWhatThePapersSayForFourRanksAndEightMicroBatches) {
  const auto peaks = [](PipelineOrder name, const PipelineShape& shape) {
    std::vector<int> all;
    for (int rank = 0; rank < shape.ranks; ++rank)
      all.push_back(peak_activations(make_schedule(name, shape), rank));
    return all;
  };
  EXPECT_EQ(peaks(PipelineOrder::gpipe, {4, 8, 1}), (std::vector{8, 8, 8, 8}));
  EXPECT_EQ(peaks(PipelineOrder::one_f_one_b, {4, 8, 1}), (std::vector{4, 3, 2, 1}));
  EXPECT_EQ(peaks(PipelineOrder::interleaved, {4, 8, 2}), (std::vector{11, 9, 7, 5}));
  EXPECT_EQ(peaks(PipelineOrder::interleaved, {4, 4, 2}), (std::vector{8, 8, 7, 5}))
      << "there are no more";
  EXPECT_EQ(peaks(PipelineOrder::zero_bubble, {4, 8, 1}), (std::vector{4, 4, 4, 4}));
}

TEST(PipelineSchedules, AreTheOrdersOfThePapersForTwoRanks) {
  const Slot f0{Kind::forward, 0, 0}, f1{Kind::forward, 0, 1}, f2{Kind::forward, 0, 2};
  const Slot b0{Kind::backward, 0, 0}, b1{Kind::backward, 0, 1}, b2{Kind::backward, 0, 2};
  const Slot i0{Kind::input, 0, 0}, i1{Kind::input, 0, 1}, i2{Kind::input, 0, 2};
  const Slot w0{Kind::weight, 0, 0}, w1{Kind::weight, 0, 1}, w2{Kind::weight, 0, 2};
  const PipelineShape shape{2, 3, 1};
  EXPECT_EQ(gpipe(shape)[1], (Order{f0, f1, f2, b0, b1, b2}));
  EXPECT_EQ(one_f_one_b(shape),
            (PipelineSchedule{{f0, f1, b0, f2, b1, b2}, {f0, b0, f1, b1, f2, b2}}));
  EXPECT_EQ(zero_bubble(shape), (PipelineSchedule{{f0, f1, i0, w0, f2, i1, w1, i2, w2},
                                                  {f0, i0, f1, i1, w0, f2, i2, w1, w2}}));
  const Slot F0{Kind::forward, 1, 0}, F1{Kind::forward, 1, 1};
  const Slot B0{Kind::backward, 1, 0}, B1{Kind::backward, 1, 1};
  EXPECT_EQ(interleaved({2, 2, 2}),
            (PipelineSchedule{{f0, f1, F0, F1, B0, B1, b0, b1}, {f0, f1, F0, B0, F1, B1, b0, b1}}));
}

TEST(PipelineSchedules, AddGradientsInTheOrderOfTheMicroBatches) {
  for (const PipelineOrder name : all_values<PipelineOrder>)
    for_all(name, [&](const PipelineShape& shape) {
      for (const Order& order : make_schedule(name, shape)) {
        std::vector<int> next(std::size_t(shape.chunks));
        for (const Slot& slot : order)
          if (slot.kind == Kind::backward || slot.kind == Kind::weight) {
            ASSERT_EQ(slot.micro_batch, next[std::size_t(slot.chunk)]++) << words(name, shape);
          }
      }
    });
}

TEST(PipelineSchedules, RejectImpossibleShapesAndNameTheNearestPossibleOne) {
  EXPECT_EQ(refusal(PipelineOrder::interleaved, {4, 6, 2}),
            "pipeline of 4 ranks, interleaved, needs micro-batches that divide by 4: 6 do not, 4 "
            "and 8 do");
  EXPECT_EQ(refusal(PipelineOrder::interleaved, {4, 3, 2}),
            "pipeline of 4 ranks, interleaved, needs micro-batches that divide by 4: 3 do not, 4 "
            "do");
  EXPECT_EQ(refusal(PipelineOrder::interleaved, {4, 1, 2}),
            "pipeline of 4 ranks, interleaved, needs micro-batches that divide by 4: 1 does not, 4 "
            "do");
  for (const auto name :
       {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
    EXPECT_EQ(refusal(name, {4, 8, 2}), "pipeline of 4 ranks, " + std::string(name_of(name)) +
                                            ", needs 1 chunk a rank: 2 are for interleaved");
  for (const PipelineOrder name : all_values<PipelineOrder>) {
    EXPECT_EQ(refusal(name, {0, 1, 1}),
              "pipeline, " + std::string(name_of(name)) + ", needs 1 or more ranks: 0 cannot be");
    EXPECT_EQ(refusal(name, {1, -2, 1}), "pipeline, " + std::string(name_of(name)) +
                                             ", needs 1 or more micro-batches: -2 cannot be");
    EXPECT_EQ(refusal(name, {1, 1, 0}), "pipeline, " + std::string(name_of(name)) +
                                            ", needs 1 or more chunks a rank: 0 cannot be");
  }
}

TEST(PipelineSchedules, HaveFormulasOnlyForTheShapesTheySupport) {
  const PipelineShape six{4, 6, 2};
  const std::string refused = refusal(PipelineOrder::interleaved, six);
  EXPECT_EQ(thrown<InvalidArgument>([&] { ideal_bubble(PipelineOrder::interleaved, six); }),
            refused);
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { closed_form_activations(PipelineOrder::interleaved, six, 0); }),
      refused);
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              closed_form_activations(PipelineOrder::one_f_one_b, {4, 6, 1}, 4);
            }),
            "rank 4 is not in a pipeline of 4 ranks");
}

// Two ranks and two micro-batches; each case breaks something.
struct Broken {
  PipelineShape shape{2, 2, 1};
  PipelineSchedule schedule = gpipe(shape);
  PipelineSchedule split = zero_bubble(shape);
};

TEST(PipelineValidator, NamesASlotThatRunsTwice) {
  Broken b;
  b.schedule[1].insert(b.schedule[1].begin() + 2, b.schedule[1][0]);
  EXPECT_EQ(refusal(b.schedule, b.shape),
            "slot 2 of rank 1, forward(chunk 0, micro-batch 0), cannot run: it ran before");
  b.schedule = gpipe(b.shape);
  b.schedule[0].push_back({Kind::backward, 0, 1});
  EXPECT_EQ(refusal(b.schedule, b.shape),
            "slot 4 of rank 0, backward(chunk 0, micro-batch 1), cannot run: it ran before");
  b.split[0].push_back({Kind::weight, 0, 0});
  EXPECT_EQ(refusal(b.split, b.shape),
            "slot 6 of rank 0, weight(chunk 0, micro-batch 0), cannot run: it ran before");
}

TEST(PipelineValidator, NamesWhatIsMissing) {
  Broken b;
  b.schedule[1].pop_back();
  EXPECT_EQ(refusal(b.schedule, b.shape),
            "rank 1 ends after slot 2 without backward(chunk 0, micro-batch 1)");
  b.schedule[0] = {b.schedule[0][0], b.schedule[0][2]};
  EXPECT_EQ(refusal(b.schedule, b.shape),
            "rank 0 ends after slot 1 without forward(chunk 0, micro-batch 1)");
  b.schedule.pop_back();
  EXPECT_EQ(refusal(b.schedule, b.shape), "a pipeline of 2 ranks has orders for 1");
  EXPECT_EQ(refusal(b.schedule, {1, -1, 1}),
            "a pipeline has 1 or more ranks, micro-batches and chunks: 1, -1 and 1 cannot be");
}

TEST(PipelineValidator, NamesABackwardBeforeItsForward) {
  Broken b;
  std::swap(b.schedule[0][0], b.schedule[0][2]);
  EXPECT_EQ(
      refusal(b.schedule, b.shape),
      "slot 0 of rank 0, backward(chunk 0, micro-batch 0), cannot run: its forward has not run");
}

TEST(PipelineValidator, NamesAnInputPartWithoutItsWeightPartAndTheReverse) {
  Broken b;
  b.split[0].pop_back();
  EXPECT_EQ(refusal(b.split, b.shape),
            "rank 0 ends after slot 4 without weight(chunk 0, micro-batch 1)");
  b.split = zero_bubble(b.shape);
  std::erase(b.split[1], Slot{Kind::input, 0, 1});
  EXPECT_EQ(refusal(b.split, b.shape),
            "slot 4 of rank 1, weight(chunk 0, micro-batch 1), cannot run: its input has not run");
}

TEST(PipelineValidator, NamesAWeightPartBeforeItsInputPart) {
  Broken b;
  std::swap(b.split[0][2], b.split[0][3]);
  EXPECT_EQ(refusal(b.split, b.shape),
            "slot 2 of rank 0, weight(chunk 0, micro-batch 0), cannot run: its input has not run");
}

TEST(PipelineValidator, NamesASlotOutsideTheShape) {
  Broken b;
  b.schedule[0][0].micro_batch = 2;
  EXPECT_EQ(refusal(b.schedule, b.shape),
            "slot 0 of rank 0, forward(chunk 0, micro-batch 2), cannot run: the number of "
            "micro-batches is 2");
  b.schedule[0][0] = {Kind::forward, -1, 0};
  EXPECT_EQ(refusal(b.schedule, b.shape),
            "slot 0 of rank 0, forward(chunk -1, micro-batch 0), cannot run: the number of chunks "
            "is 1");
}

TEST(PipelineValidator, NamesTheRanksThatWaitForEachOther) {
  const PipelineShape shape{3, 2, 1};
  PipelineSchedule schedule = gpipe(shape);
  std::swap(schedule[1][1], schedule[1][2]);  // rank 0 waits as well, but is not to blame
  EXPECT_EQ(refusal(schedule, shape),
            "the ranks of the pipeline wait for each other for ever: slot 1 of rank 1, "
            "backward(chunk 0, micro-batch 0), waits for chunk 0 of rank 2; slot 1 of rank 2, "
            "forward(chunk 0, micro-batch 1), waits for chunk 0 of rank 1");
  const PipelineShape alone{1, 1, 2};
  schedule = interleaved(alone);
  std::swap(schedule[0][0], schedule[0][1]);
  EXPECT_EQ(refusal(schedule, alone),
            "the ranks of the pipeline wait for each other for ever: slot 0 of rank 0, "
            "forward(chunk 1, micro-batch 0), waits for chunk 0 of rank 0");
}

TEST(PipelineValidator, NamesTheForwardThatIsOneTooMany) {
  Broken b;
  EXPECT_EQ(refusal(b.schedule, b.shape, {2, 1}),
            "slot 1 of rank 1, forward(chunk 0, micro-batch 1), cannot run: 2 activations would be "
            "alive, and the bound is 1");
  EXPECT_EQ(refusal(b.split, b.shape, {2, 2}), accepted);
  EXPECT_EQ(refusal(b.split, b.shape, {1, 2}),
            "slot 1 of rank 0, forward(chunk 0, micro-batch 1), cannot run: 2 activations would be "
            "alive, and the bound is 1")
      << "a weight part has to free them";
  EXPECT_EQ(refusal(b.schedule, b.shape, {2}),
            "a pipeline of 2 ranks has bounds on activations for 1");
}

TEST(PipelineValidator, AgreesWithAJudgeOnSchedulesThatWereChanged) {
  Draw draw("pipeline mutations");
  int valid = 0, stuck = 0, rounds = 4000;
  for (int round = 0; round < rounds; ++round) {
    const PipelineOrder name = all_values<PipelineOrder>[draw.below(4)];
    PipelineShape shape{draw.from_1_to(4), draw.from_1_to(6), 1};
    if (name == PipelineOrder::interleaved) {
      shape.micro_batches = shape.ranks * draw.from_1_to(2);
      shape.chunks = draw.from_1_to(3);
    }
    PipelineSchedule schedule = make_schedule(name, shape);
    Order& order = schedule[draw.below(schedule.size())];
    const auto i = std::ptrdiff_t(draw.below(order.size()));
    switch (draw.below(6)) {
      case 0:
        order.erase(order.begin() + i);
        break;
      case 1:
        order.insert(order.begin() + std::ptrdiff_t(draw.below(order.size())),
                     order[std::size_t(i)]);
        break;
      default:
        std::swap(order[std::size_t(i)], order[draw.below(order.size())]);
    }
    const std::string why = refusal(schedule, shape);
    ASSERT_EQ(why == accepted, runs(schedule, shape)) << words(name, shape) << ": " << why;
    valid += why == accepted;
    stuck += why.starts_with("the ranks");
  }
  EXPECT_GT(valid, rounds / 50) << "changes that do no harm are tried too";
  EXPECT_GT(stuck, rounds / 50) << "and such as make ranks wait for each other";
}

}  // namespace
}  // namespace echelon
