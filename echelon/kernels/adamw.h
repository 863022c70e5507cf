// Scalars of an AdamW step, shared by the kernels of all devices (optim/adamw.cpp has the formula).
#pragma once

namespace echelon::kernels {

struct AdamwFactors {
  double keep;  // 1 - rate * decay
  double beta1, beta2;
  double step;  // rate / (1 - beta1^t)
  double root;  // sqrt(1 - beta2^t)
  double epsilon;
  double scale;  // gradients are divided by it
};

}  // namespace echelon::kernels
