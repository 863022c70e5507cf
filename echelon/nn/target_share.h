// What a target counts in the mean loss of a step: the factor of its gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "echelon/nn/layer.h"

namespace echelon {

// Whether samples say how many targets they have, so that some may have none.
bool counts_targets(const Pass& pass);

// The number of targets that a loss divides by: those of the step, or of this batch in evaluation.
// Only if counts_targets().
at::Tensor target_count(const Pass& pass);

// The share as a number, and a factor that only the device knows; undefined: 1.
struct TargetShare {
  double number = 1;
  at::Tensor on_device;
};
// `rows`: the number of targets in the batch if samples do not say it.
TargetShare target_share(const Pass& pass, std::int64_t rows);

}  // namespace echelon
