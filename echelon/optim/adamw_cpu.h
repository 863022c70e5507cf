// AdamW on a CPU by our own kernel, on torch's threads (adamw.cpp has the formula).
#pragma once

#include <ATen/core/Tensor.h>

#include "echelon/kernels/adamw.h"

namespace echelon {

// Flat tensors of one length and type, float or double. If they are float, the gradient may be
// bf16.
void adamw_cpu(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& mean,
               const at::Tensor& square, const kernels::AdamwFactors& factors);

}  // namespace echelon
