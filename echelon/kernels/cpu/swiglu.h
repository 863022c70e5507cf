// silu(gate) * up with silu(x) = x / (1 + exp(-x)) in fp32 on a CPU, of rows that have gate and up
// side by side. A row's bits do not depend on the others. A CUDA kernel takes a stream as well.
#pragma once

#include <cstdint>

namespace echelon::kernels::cpu {

// hidden is [rows, 2 width], y is [rows, width].
void swiglu(const float* hidden, float* y, std::int64_t rows, std::int64_t width);

// The gradient for hidden, given that for y.
void swiglu_backward(const float* hidden, const float* grad, float* grad_hidden, std::int64_t rows,
                     std::int64_t width);

}  // namespace echelon::kernels::cpu
