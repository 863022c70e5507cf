// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "echelon/optim/options.h"

namespace echelon {

// The learning rate of step `step` (0-based) of `steps`: linear warm-up, then cosine or linear
// decay to final_rate * rate, or constant. A custom schedule gives the share of the rate; throws
// InvalidArgument if the rate is then negative or not finite.
double rate_at(const OptimOptions& options, std::int64_t step, std::int64_t steps);

// The peak learning rate for a batch of this size, according to optim.scale.
double peak_rate(const OptimOptions& options, std::int64_t batch);

}  // namespace echelon
