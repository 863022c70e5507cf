// GELU in its tanh approximation, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as GPT-2 has it:
// our own kernel for floats on a CPU, torch's elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

at::Tensor tanh_gelu(const at::Tensor& x);

// Makes the gradient of tanh_gelu(x) that of x, in place.
void tanh_gelu_backward_(at::Tensor grad, const at::Tensor& x);

}  // namespace echelon
