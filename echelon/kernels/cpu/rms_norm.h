// Root-mean-square normalisation of rows, y = x rstd w with rstd = 1 / sqrt(mean(x^2) + epsilon),
// in fp32 on a CPU. A row's bits do not depend on the others, and the weight's gradient is a sum
// over rows in their order. A CUDA kernel takes a stream as well.
#pragma once

#include <cstdint>

namespace echelon::kernels::cpu {

struct RmsRows {
  const float *x, *weight;  // [rows, width], [width]
  std::int64_t rows, width;
};

// y is [rows, width], rstd [rows].
void rms_norm(const RmsRows& of, float epsilon, float* y, float* rstd);

// The gradients for x, [rows, width], and, over these rows, for the weight, [width].
void rms_norm_backward(const RmsRows& of, const float* rstd, const float* grad, float* grad_x,
                       float* grad_weight);

}  // namespace echelon::kernels::cpu
