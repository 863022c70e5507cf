#include "echelon/base/deadline.h"

#include <gtest/gtest.h>

namespace echelon {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, HasTimeLeftUntilItExpires) {
  const auto deadline = Deadline::in(1h);
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), 59min);
  EXPECT_LE(deadline.remaining(), 1h);
}

TEST(Deadline, NeverHasNegativeTimeLeft) {
  for (const auto time : {0s, -1s, -3600s}) {
    const auto deadline = Deadline::in(time);
    EXPECT_TRUE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), Deadline::Clock::duration::zero());
  }
}

TEST(Deadline, OfTheLongestTimeDoesNotWrapIntoThePast) {
  const auto deadline = Deadline::in(Deadline::Clock::duration::max());
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), 24h);
}

}  // namespace
}  // namespace echelon
