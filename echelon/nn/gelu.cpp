#include "echelon/nn/gelu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include <cstdint>
#include <utility>

#include "echelon/kernels/cpu/gelu.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

constexpr std::int64_t grain = 1 << 14;  // minimum number of elements per thread

bool ours(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

using ForwardKernel = void (*)(const float* x, float* y, std::int64_t count);
using BackwardKernel = void (*)(const float* x, float* grad, std::int64_t count);

at::Tensor run(const at::Tensor& x, ForwardKernel kernel, const char* approximate) {
  if (!ours(x)) return at::gelu(x, approximate);
  at::Tensor y = at::empty_like(x);
  float* const to = y.data_ptr<float>();
  const float* const from = x.const_data_ptr<float>();
  parallel_over(y.view({-1}), grain, [&](std::int64_t begin, std::int64_t end) {
    kernel(from + begin, to + begin, end - begin);
  });
  return y;
}

void run_backward(at::Tensor grad, const at::Tensor& x, BackwardKernel kernel,
                  const char* approximate) {
  if (!ours(x) || !ours(grad)) {
    at::gelu_backward_out(grad, grad, x, approximate);
    return;
  }
  float* const to = grad.data_ptr<float>();
  const float* const from = x.const_data_ptr<float>();
  parallel_over(grad.view({-1}), grain, [&](std::int64_t begin, std::int64_t end) {
    kernel(from + begin, to + begin, end - begin);
  });
}

}  // namespace

at::Tensor exact_gelu(const at::Tensor& x) { return run(x, kernels::cpu::gelu, "none"); }
at::Tensor tanh_gelu(const at::Tensor& x) { return run(x, kernels::cpu::tanh_gelu, "tanh"); }

void exact_gelu_backward_(at::Tensor grad, const at::Tensor& x) {
  run_backward(std::move(grad), x, kernels::cpu::gelu_backward, "none");
}
void tanh_gelu_backward_(at::Tensor grad, const at::Tensor& x) {
  run_backward(std::move(grad), x, kernels::cpu::tanh_gelu_backward, "tanh");
}

}  // namespace echelon
