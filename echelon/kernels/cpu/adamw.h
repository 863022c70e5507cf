// AdamW on a CPU: one pass over values, gradient and moments. The result of an element does not
// depend on where a range begins or ends, so a caller may split it over threads. A CUDA kernel also
// takes a stream, and reads its scalars from device memory.
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
