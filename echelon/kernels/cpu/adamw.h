// AdamW on a CPU: one pass over values, gradient and moments. An element's new values do not depend
// on where a range begins or ends, so a caller may cut it for its threads. A CUDA kernel takes a
// stream as well, and its scalars from the device's memory.
#pragma once

#include <cstdint>

#include "echelon/kernels/adamw.h"
#include "echelon/kernels/bf16.h"

namespace echelon::kernels::cpu {

void adamw(double* value, const double* grad, double* mean, double* square, std::int64_t count,
           const AdamwFactors& factors);
void adamw(float* value, const float* grad, float* mean, float* square, std::int64_t count,
           const AdamwFactors& factors);
void adamw(float* value, const Bf16* grad, float* mean, float* square, std::int64_t count,
           const AdamwFactors& factors);

}  // namespace echelon::kernels::cpu
