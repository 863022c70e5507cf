// AdamW on a CPU: one pass over values, gradient and moments (adamw.cpp has the formula).
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

struct AdamwFactors {
  double keep;  // 1 - rate * decay
  double beta1, beta2;
  double step;  // rate / (1 - beta1^t)
  double root;  // sqrt(1 - beta2^t)
  double epsilon;
  double scale;  // gradients are divided by it
};

// Flat tensors of one length and type, float or double; the gradient may be bf16 where they are
// float.
void adamw_cpu(at::Tensor value, const at::Tensor& grad, at::Tensor mean, at::Tensor square,
               const AdamwFactors& factors);

}  // namespace echelon
