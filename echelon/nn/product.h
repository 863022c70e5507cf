// x W^T + b, the product of every linear layer, through the faster of the libraries that LibTorch
// carries. Its own operators send fp32 products on x86 to MKL, which runs its AVX2 code on
// processors that are not Intel's; oneDNN uses what the processor has (12 to 40 % faster on an AMD
// EPYC with AVX-512).
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

// x [n, in], weight [out, in] with any strides, bias [out] or undefined -> [n, out].
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

// Which library fp32 products on the CPU go to, for the plan: "oneDNN", or "torch" for torch's own
// choice.
const char* product_library();

}  // namespace echelon
