// Root-mean-square normalisation of rows, y = x rstd w with rstd = 1 / sqrt(mean(x^2) + epsilon),
// in fp32 on a CPU. The bits of a row do not depend on other rows, and the gradient of the weight
// is a sum over rows in their order. A CUDA kernel also takes a stream.
#pragma once

#include <cstdint>

namespace echelon::kernels::cpu {

struct RmsRows {
  const float *x, *weight;  // [rows, width], [width]
  std::int64_t rows, width;
};

// y is [rows, width], rstd [rows].
void rms_norm(const RmsRows& of, float epsilon, float* y, float* rstd);

// The gradients of x, [rows, width], and of the weight over these rows, [width].
void rms_norm_backward(const RmsRows& of, const float* rstd, const float* grad, float* grad_x,
                       float* grad_weight);

}  // namespace echelon::kernels::cpu
