// x W^T + b, the product of every linear layer, and the gradient of its weight, by the fastest code
// available. LibTorch's own operators send fp32 products on x86 to MKL, which runs its AVX2 code on
// processors that are not Intel's. OneDNN, which LibTorch also contains, uses all that the
// processor has (12 to 40 % faster on an AMD EPYC with AVX-512) but cannot add into a gradient; our
// own kernel does that there.
#pragma once

#include <ATen/core/Tensor.h>

#include "echelon/nn/outer_products.h"

namespace echelon {

// x [n, in], weight [out, in] with any strides, bias [out] or undefined -> [n, out].
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

// The gradients of weight [in, out] and bias [out], given x [n, in] and the gradient of the result,
// grad_y [n, out]: scale * x^T grad_y, and the sum of grad_y's rows if a bias is given.
void product_gradient(const at::Tensor& x, const at::Tensor& grad_y, double scale,
                      Accumulated weight, Accumulated bias = {});

// The library that computes fp32 products on the CPU, for the plan: "oneDNN", or "torch" for
// torch's own choice.
const char* product_library();

}  // namespace echelon
