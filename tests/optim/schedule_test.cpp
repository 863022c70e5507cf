#include "echelon/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

OptimOptions options(RateSchedule schedule, std::int64_t warmup) {
  OptimOptions o;
  o.rate = 0.5;
  o.schedule = schedule;
  o.warmup = warmup;
  o.final_rate = 0.1;
  return o;
}

TEST(RateAt, RisesLinearlyOverTheWarmUp) {
  for (const auto schedule : all_values<RateSchedule>) {
    const auto o = options(schedule, 10);
    EXPECT_DOUBLE_EQ(rate_at(o, 0, 100), 0.05) << schedule << ": the first step moves";
    EXPECT_DOUBLE_EQ(rate_at(o, 4, 100), 0.25) << schedule;
    EXPECT_DOUBLE_EQ(rate_at(o, 9, 100), 0.5) << schedule;
    EXPECT_DOUBLE_EQ(rate_at(o, 10, 100), 0.5) << schedule << ": the fall begins at the peak";
  }
}

TEST(RateAt, NeedsNoWarmUp) {
  for (const auto schedule : all_values<RateSchedule>) {
    EXPECT_DOUBLE_EQ(rate_at(options(schedule, 0), 0, 100), 0.5) << schedule;
  }
}

// transformers' get_linear_schedule_with_warmup multiplies the rate of step k (0-based) by
// k / warmup, and after the warm-up by (steps - k) / (steps - warmup). From the warm-up on ours is
// the same. Within the warm-up it is one step ahead: theirs begins with a step at rate 0.
TEST(RateAt, IsTheLinearScheduleOfTransformersOneStepAheadInTheWarmUp) {
  for (const std::int64_t steps : {1, 7, 40, 1000})
    for (const std::int64_t warmup : {0, 1, 6, 100}) {
      OptimOptions o;
      o.rate = 3e-5;
      o.warmup = warmup;
      const auto theirs = [&](std::int64_t k) {
        if (k < warmup) return o.rate * static_cast<double>(k) / static_cast<double>(warmup);
        return o.rate *
               std::max(0.0, static_cast<double>(steps - k) /
                                 static_cast<double>(std::max<std::int64_t>(1, steps - warmup)));
      };
      for (std::int64_t k = 0; k < steps; ++k) {
        SCOPED_TRACE("step " + std::to_string(k) + " of " + std::to_string(steps));
        if (k >= warmup)
          EXPECT_NEAR(rate_at(o, k, steps), theirs(k), 1e-15 * o.rate);
        else if (k + 1 < warmup)
          EXPECT_NEAR(rate_at(o, k, steps), theirs(k + 1), 1e-15 * o.rate);
        else
          EXPECT_NEAR(rate_at(o, k, steps), o.rate, 1e-15 * o.rate) << "the peak";
      }
    }
}

TEST(RateAt, FollowsAProgramsOwnSchedule) {
  OptimOptions o = options(RateSchedule::cosine, 10);
  o.custom_schedule = [](std::int64_t step, std::int64_t steps) {
    return static_cast<double>(step) / static_cast<double>(2 * steps);
  };
  for (const std::int64_t step : {0, 5, 99})
    EXPECT_DOUBLE_EQ(rate_at(o, step, 100), 0.5 * static_cast<double>(step) / 200);
}

TEST(RateAt, FallsAlongACosineToItsShareOfThePeak) {
  const auto o = options(RateSchedule::cosine, 20);
  EXPECT_DOUBLE_EQ(rate_at(o, 60, 100), 0.5 * (0.1 + 0.9 / 2)) << "half way";
  EXPECT_DOUBLE_EQ(rate_at(o, 40, 100), 0.5 * (0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2))
      << "a quarter";
  EXPECT_NEAR(rate_at(o, 99, 100), 0.05, 2e-4) << "the last step";
  EXPECT_DOUBLE_EQ(rate_at(o, 100, 100), 0.05);
}

TEST(RateAt, FallsAlongALineToItsShareOfThePeak) {
  const auto o = options(RateSchedule::linear, 20);
  EXPECT_DOUBLE_EQ(rate_at(o, 40, 100), 0.5 * (0.1 + 0.9 * 0.75));
  EXPECT_DOUBLE_EQ(rate_at(o, 60, 100), 0.5 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(rate_at(o, 100, 100), 0.05);
}

TEST(RateAt, StaysConstantIfAsked) {
  for (const std::int64_t step : {10, 50, 99, 1000})
    EXPECT_DOUBLE_EQ(rate_at(options(RateSchedule::constant, 10), step, 100), 0.5);
}

TEST(RateAt, NeverRisesAfterTheWarmUpNorLeavesItsBounds) {
  for (const auto schedule : all_values<RateSchedule>) {
    for (const std::int64_t warmup : {0, 1, 7, 30, 50}) {  // includes one longer than the run
      const auto o = options(schedule, warmup);
      for (std::int64_t step = 0; step < 40; ++step) {
        const double rate = rate_at(o, step, 30);
        EXPECT_GT(rate, 0);
        EXPECT_LE(rate, 0.5 + 1e-15);
        if (step <= warmup) continue;
        EXPECT_LE(rate, rate_at(o, step - 1, 30))
            << schedule << " step " << step << " warm-up " << warmup;
        EXPECT_GE(rate, 0.05 - 1e-15);
      }
    }
  }
}

TEST(RateAt, EndsAtZeroIfAsked) {
  auto o = options(RateSchedule::linear, 0);
  o.final_rate = 0;
  EXPECT_DOUBLE_EQ(rate_at(o, 100, 100), 0);
}

TEST(PeakRate, FollowsTheBatchByTheChosenRule) {
  OptimOptions o;
  o.rate = 0.25;
  o.base_batch = 8;
  EXPECT_DOUBLE_EQ(peak_rate(o, 128), 0.25);
  o.scale = RateScale::linear;
  EXPECT_DOUBLE_EQ(peak_rate(o, 128), 4);
  EXPECT_DOUBLE_EQ(peak_rate(o, 8), 0.25);
  o.scale = RateScale::sqrt;
  EXPECT_DOUBLE_EQ(peak_rate(o, 128), 1);
  EXPECT_DOUBLE_EQ(peak_rate(o, 2), 0.125);
}

TEST(RateAt, RefusesARateThatIsNegativeOrNotFinite) {
  OptimOptions o;
  o.rate = 0.5;
  for (const double share : {std::nan(""), -0.1, HUGE_VAL, -HUGE_VAL, 1e300}) {
    o.custom_schedule = [share](std::int64_t step, std::int64_t) { return step == 6 ? share : 1; };
    EXPECT_EQ(rate_at(o, 5, 9), 0.5);
    EXPECT_NE(thrown<InvalidArgument>([&] { rate_at(o, 6, 9); }).find("so step 7 would have"),
              std::string::npos)
        << share;
  }
  o.custom_schedule = [](std::int64_t, std::int64_t) { return 0.0; };
  EXPECT_EQ(rate_at(o, 0, 9), 0);
}

}  // namespace
}  // namespace echelon
