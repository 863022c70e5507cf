#include "echelon/parallel/data/batch_split.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "echelon/collective/server_exchange.h"
#include "echelon/parallel/server/slices.h"

namespace echelon {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(Shares, AreEvenAndGiveTheRemainderToTheFirstRanks) {
  EXPECT_EQ(even_split(8, 4), (Numbers{2, 2, 2, 2}));
  EXPECT_EQ(even_split(8, 3), (Numbers{3, 3, 2}));
  EXPECT_EQ(even_split(2, 2), (Numbers{1, 1}));
}

TEST(Shares, FollowSpeed) {
  // One rank is three times slower: 10 samples as 3, 3, 3, 1 take 3 units of time; an even split
  // would take 9.
  EXPECT_EQ(split_by_speed(10, {1, 1, 1, 3}, 1), (Numbers{3, 3, 3, 1}));
  EXPECT_EQ(split_by_speed(8, {1, 1}, 1), (Numbers{4, 4}));
}

// Compared with all splits of a small batch.
TEST(Shares, MinimiseTheTimeOfTheSlowestRank) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> any(0.5, 4);
  for (int i = 0; i < 50; ++i) {
    const std::vector<double> seconds = {any(random), any(random), any(random)};
    double best = 1e9;
    for (std::int64_t a = 1; a <= 10; ++a)
      for (std::int64_t b = 1; a + b <= 11; ++b)
        best = std::min(best, compute_seconds({a, b, 12 - a - b}, seconds));
    const auto shares = split_by_speed(12, seconds, 1);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), 12);
    EXPECT_DOUBLE_EQ(compute_seconds(shares, seconds), best);
  }
}

TEST(Shares, StayUnlessTheStepGetsATenthShorter) {
  EXPECT_EQ(better_split({4, 4}, {1.0, 1.05}, 1), std::nullopt);
  EXPECT_EQ(better_split({4, 4}, {1, 3}, 1), (Numbers{6, 2}));
  EXPECT_EQ(better_split({6, 2}, {1, 3}, 1), std::nullopt) << "it is there already";
}

TEST(OwnedRanges, CoverTheBufferAndAreAligned) {
  for (const std::int64_t elements : {0, 31, 32, 1000, 1 << 20})
    for (int servers = 1; servers <= 5; ++servers) {
      const auto ranges = cut_ranges(elements, std::vector<double>(std::size_t(servers), 1.0));
      ASSERT_EQ(std::ssize(ranges), servers);
      std::int64_t at = 0;
      for (const auto& range : ranges) {
        EXPECT_EQ(range.begin, at);
        EXPECT_LE(range.begin, range.end);
        EXPECT_TRUE(range.end == elements || range.end % 32 == 0) << range.end;
        at = range.end;
      }
      EXPECT_EQ(at, elements);
    }
}

// BytePS: with 4 workers and k extra servers, every link carries 1.5, 1.2 and 1.0 times the model.
TEST(OwnedRanges, CanFillAllLinksEvenly) {
  const double n = 4;
  for (const auto& [k, expected] : {std::pair{0, 1.5}, {2, 1.2}, {4, 1.0}}) {
    const auto weights = balanced_weights(int(n), k);
    EXPECT_NEAR(vectors_a_link(int(n), k), expected, 1e-12);
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
    // A worker sends its gradient except for its own part, and its part to the others.
    EXPECT_NEAR((1 - weights[0]) + weights[0] * (n - 1), expected, 1e-12);
    EXPECT_NEAR(k > 0 ? weights.back() * n : expected, expected, 1e-12);
  }
}

}  // namespace
}  // namespace echelon
