// silu(gate) * up with silu(x) = x / (1 + exp(-x)) in fp32 on a CPU, for rows with gate and up side
// by side. The bits of a row do not depend on other rows. A CUDA kernel also takes a stream.
#pragma once

#include <cstdint>

namespace echelon::kernels::cpu {

// hidden is [rows, 2 width], y is [rows, width].
void swiglu(const float* hidden, float* y, std::int64_t rows, std::int64_t width);

// The gradient of hidden, given that of y.
void swiglu_backward(const float* hidden, const float* grad, float* grad_hidden, std::int64_t rows,
                     std::int64_t width);

}  // namespace echelon::kernels::cpu
