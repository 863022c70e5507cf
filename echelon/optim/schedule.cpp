#include "echelon/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "echelon/base/error.h"

namespace echelon {

double peak_rate(const OptimOptions& options, std::int64_t batch) {
  const double times = static_cast<double>(batch) / static_cast<double>(options.base_batch);
  if (options.scale == RateScale::linear) return options.rate * times;
  if (options.scale == RateScale::sqrt) return options.rate * std::sqrt(times);
  return options.rate;
}

double rate_at(const OptimOptions& options, std::int64_t step, std::int64_t steps) {
  if (options.custom_schedule) {
    const double share = options.custom_schedule(step, steps), rate = options.rate * share;
    if (!std::isfinite(static_cast<float>(rate)) || rate < 0)
      throw InvalidArgument(
          fmt::format("optim.custom_schedule({}, {}) is {}, so step {} would have the rate {}: "
                      "return a finite share of optim.rate, 0 or more",
                      step, steps, share, step + 1, rate));
    return rate;
  }
  if (step < options.warmup) {
    return options.rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  }
  const auto span = static_cast<double>(std::max<std::int64_t>(1, steps - options.warmup));
  const double done = std::min(1.0, static_cast<double>(step - options.warmup) / span);
  double share = 1;
  if (options.schedule == RateSchedule::cosine)
    share = 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (options.schedule == RateSchedule::linear) share = 1 - done;
  return options.rate * (options.final_rate + (1 - options.final_rate) * share);
}

}  // namespace echelon
