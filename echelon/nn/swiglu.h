// silu(gate) * up with silu(x) = x / (1 + exp(-x)), of gate and up side by side as one product
// gives them (Shazeer, "GLU Variants Improve Transformer", 2020).
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

at::Tensor swiglu(const at::Tensor& hidden);  // [rows, 2 n] -> [rows, n]

// The gradient for `hidden`, given that for the result.
at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& hidden);

}  // namespace echelon
