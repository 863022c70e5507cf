// GELU, x/2 (1 + erf(x / sqrt(2))), as in BERT, and its tanh approximation,
// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2. Floats on a CPU use our own kernel,
// everything else torch's.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

at::Tensor exact_gelu(const at::Tensor& x);
at::Tensor tanh_gelu(const at::Tensor& x);

// In place: turn the gradient of exact_gelu(x) or tanh_gelu(x) into the gradient of x.
void exact_gelu_backward_(at::Tensor grad, const at::Tensor& x);
void tanh_gelu_backward_(at::Tensor grad, const at::Tensor& x);

}  // namespace echelon
