#include "echelon/data/sampler.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace echelon {
namespace {

// All samples of the first `steps` steps, in order.
std::vector<std::int64_t> drawn(const Sampler& sampler, std::int64_t steps, std::int64_t batch) {
  std::vector<std::int64_t> all;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto some = sampler.indices(step, 0, batch);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST(Sampler, DrawsEverySampleOnceAnEpoch) {
  for (const std::int64_t samples : {1, 2, 7, 64, 1000}) {
    for (const std::int64_t batch : {1, 3, 8, 50}) {
      constexpr std::int64_t epochs = 3;
      const auto all =
          drawn(Sampler(5, samples, batch), (epochs * samples + batch - 1) / batch, batch);
      for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
        const auto begin = all.begin() + epoch * samples;
        const std::set<std::int64_t> seen(begin, begin + samples);
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(samples))
            << "epoch " << epoch << " of " << samples << " samples, batch " << batch;
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), samples - 1);
      }
    }
  }
}

TEST(Sampler, GivesEveryEpochAnOrderOfItsOwn) {
  const auto all = drawn(Sampler(5, 1000, 10), 200, 10);
  int same_place = 0, in_order = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    same_place += all[i] == all[i + 1000];
    in_order += all[i] == static_cast<std::int64_t>(i);
  }
  EXPECT_LE(same_place, 8);  // 1 on average
  EXPECT_LE(in_order, 8);
}

TEST(Sampler, IsAPureFunctionOfSeedStepAndPlace) {
  const Sampler one(9, 100, 8), other(9, 100, 8);
  const auto late = one.index(77, 3);
  for (std::int64_t step = 0; step < 30; ++step) one.indices(step, 0, 8);
  EXPECT_EQ(one.index(77, 3), late) << "what was drawn before must not matter";
  EXPECT_EQ(other.index(77, 3), late);
}

TEST(Sampler, GivesTheSameGlobalBatchToAnyNumberOfRanks) {
  constexpr std::int64_t batch = 24;
  const Sampler sampler(3, 100, batch);
  for (std::int64_t step = 0; step < 9; ++step) {
    const auto whole = sampler.indices(step, 0, batch);
    for (const std::int64_t ranks : {1, 2, 3, 5, 7, 24}) {
      std::vector<std::int64_t> together;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto part = sampler.indices(step, batch * rank / ranks, batch * (rank + 1) / ranks);
        together.insert(together.end(), part.begin(), part.end());
      }
      EXPECT_EQ(together, whole) << ranks << " ranks, step " << step;
    }
    for (std::int64_t place = 0; place < batch; ++place) {
      EXPECT_EQ(sampler.index(step, place), whole[static_cast<std::size_t>(place)]);
    }
  }
}

TEST(Sampler, DrawsAnotherOrderForAnotherSeed) {
  const auto one = drawn(Sampler(1, 1000, 10), 100, 10),
             other = drawn(Sampler(2, 1000, 10), 100, 10);
  int same = 0;
  for (std::size_t i = 0; i < 1000; ++i) same += one[i] == other[i];
  EXPECT_LE(same, 8);
}

TEST(Sampler, ContinuesIntoTheNextEpochWithinABatchLargerThanTheData) {
  auto one_step = Sampler(1, 3, 6).indices(0, 0, 6);
  std::sort(one_step.begin(), one_step.end());
  EXPECT_EQ(one_step, (std::vector<std::int64_t>{0, 0, 1, 1, 2, 2}));
}

}  // namespace
}  // namespace echelon
