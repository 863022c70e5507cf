#include "echelon/nn/gelu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include <cstdint>

#include "echelon/kernels/cpu/gelu.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

constexpr std::int64_t grain = 1 << 14;  // minimum number of elements per thread

bool ours(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

}  // namespace

at::Tensor tanh_gelu(const at::Tensor& x) {
  if (!ours(x)) return at::gelu(x, "tanh");
  at::Tensor y = at::empty_like(x);
  float* const to = y.data_ptr<float>();
  const float* const from = x.const_data_ptr<float>();
  parallel_over(y.view({-1}), grain, [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::tanh_gelu(from + begin, to + begin, end - begin);
  });
  return y;
}

void tanh_gelu_backward_(at::Tensor grad, const at::Tensor& x) {
  if (!ours(x) || !ours(grad)) {
    at::gelu_backward_out(grad, grad, x, "tanh");
    return;
  }
  float* const to = grad.data_ptr<float>();
  const float* const from = x.const_data_ptr<float>();
  parallel_over(grad.view({-1}), grain, [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::tanh_gelu_backward(from + begin, to + begin, end - begin);
  });
}

}  // namespace echelon
