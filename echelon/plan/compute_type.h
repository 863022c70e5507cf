// The types that a job computes and sums in, from its options.
#pragma once

#include <c10/core/ScalarType.h>

#include "echelon/plan/options.h"

namespace echelon {

// The type that train.precision names; auto depends on the device.
at::ScalarType compute_type(const TrainOptions& options);
// Whether gradients are summed in a wider type than they are computed in: train.reduce.
bool sums_in_fp32(const TrainOptions& options);

}  // namespace echelon
