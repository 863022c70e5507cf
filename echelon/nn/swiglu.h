// silu(gate) * up with silu(x) = x / (1 + exp(-x)). Gate and up lie side by side, the output of one
// product (Shazeer, "GLU Variants Improve Transformer", 2020).
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

at::Tensor swiglu(const at::Tensor& hidden);  // [rows, 2 n] -> [rows, n]

// The gradient of `hidden`, given the gradient of the result.
at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& hidden);

}  // namespace echelon
