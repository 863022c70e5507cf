#include "echelon/nn/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include <algorithm>
#include <cstdint>

#include "echelon/kernels/cpu/swiglu.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

struct Halves {
  at::Tensor gate, up;
};

Halves halves(const at::Tensor& hidden) {
  const auto n = hidden.size(1) / 2;
  return {hidden.narrow(1, 0, n), hidden.narrow(1, n, n)};
}

bool ours(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

// Minimum number of rows per thread.
std::int64_t grain(std::int64_t width) {
  return std::max<std::int64_t>(1, (1 << 13) / std::max<std::int64_t>(1, width));
}

}  // namespace

at::Tensor swiglu(const at::Tensor& hidden) {
  if (!ours(hidden)) {
    const auto [gate, up] = halves(hidden);
    return at::silu(gate).mul_(up);
  }
  const auto rows = hidden.size(0), width = hidden.size(1) / 2;
  at::Tensor y = at::empty({rows, width}, hidden.options());
  const float* const from = hidden.const_data_ptr<float>();
  float* const to = y.data_ptr<float>();
  parallel_over(rows, grain(width), [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::swiglu(from + begin * 2 * width, to + begin * width, end - begin, width);
  });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& hidden) {
  at::Tensor result = at::empty_like(hidden);
  if (!ours(hidden) || !ours(grad)) {
    const auto [gate, up] = halves(hidden);
    auto [grad_gate, grad_up] = halves(result);
    at::silu_out(grad_up, gate).mul_(grad);
    at::silu_backward_out(grad_gate, at::mul(grad, up), gate);
    return result;
  }
  const auto rows = hidden.size(0), width = hidden.size(1) / 2;
  const float *const from = hidden.const_data_ptr<float>(), *const of_y =
                                                                grad.const_data_ptr<float>();
  float* const to = result.data_ptr<float>();
  parallel_over(rows, grain(width), [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::swiglu_backward(from + begin * 2 * width, of_y + begin * width,
                                  to + begin * 2 * width, end - begin, width);
  });
  return result;
}

}  // namespace echelon
