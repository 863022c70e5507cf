#include "echelon/base/deadline.h"

#include <gtest/gtest.h>

#include <thread>

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

TEST(Deadline, ByTheKernelsTickIsNeverEarlyAndAlmostOnTime) {
  for (int i = 0; i < 20; ++i) {
    const auto before = Deadline::Clock::now();
    const auto deadline = Deadline::about(1h);
    const auto end = Deadline::Clock::now() + deadline.remaining();
    EXPECT_GE(end, before + 1h);
    EXPECT_LT(end, before + 1h + 5s);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_FALSE(Deadline::about(Deadline::Clock::duration::max()).expired());
}

}  // namespace
}  // namespace echelon
