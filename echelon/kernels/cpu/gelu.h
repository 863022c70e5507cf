// GELU in fp32 on a CPU: x/2 (1 + erf(x / sqrt(2))), and its tanh approximation,
// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). The bits of an element do not depend on where a
// range begins. A CUDA kernel also takes a stream.
#pragma once

#include <cstdint>

namespace echelon::kernels::cpu {

void gelu(const float* x, float* y, std::int64_t count);
void tanh_gelu(const float* x, float* y, std::int64_t count);

// Turn the gradient of gelu(x) or tanh_gelu(x) into that of x, in place.
void gelu_backward(const float* x, float* grad, std::int64_t count);
void tanh_gelu_backward(const float* x, float* grad, std::int64_t count);

}  // namespace echelon::kernels::cpu
