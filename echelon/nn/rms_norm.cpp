// With n = x / rms(x): y = n w. The gradient of w is the sum of g n over the rows, and the gradient
// of x is (g w - n mean(g w n)) / rms(x). bf16 and fp16 are normalised in fp32 and rounded before
// they are multiplied by the weight.
#include "echelon/nn/rms_norm.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "echelon/kernels/cpu/rms_norm.h"
#include "echelon/nn/parallel_over.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

bool ours(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous() && x.numel() > 0;
}

// Rows per block. Each block sums its contribution to the weight's gradient separately and is worth
// a thread. The block size does not depend on the number of threads, so the result does not either.
constexpr std::int64_t block = 64;

RmsNorm::Output forward_cpu(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const auto rows = x.size(0), width = x.size(1);
  RmsNorm::Output out{at::empty_like(x), at::empty({rows, 1}, x.options())};
  float *const y = out.y.data_ptr<float>(), *const rstd = out.rstd.data_ptr<float>();
  const float *const from = x.const_data_ptr<float>(), *const w = weight.const_data_ptr<float>();
  parallel_over(rows, block, [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::rms_norm({from + begin * width, w, end - begin, width},
                           static_cast<float>(epsilon), y + begin * width, rstd + begin);
  });
  return out;
}

struct Grads {
  at::Tensor x, weight;
};

Grads backward_cpu(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& rstd) {
  const auto rows = x.size(0), width = x.size(1), blocks = (rows + block - 1) / block;
  const at::Tensor grad_x = at::empty_like(x), shares = at::empty({blocks, width}, x.options());
  const float *const from = x.const_data_ptr<float>(), *const w = weight.const_data_ptr<float>(),
                     *const grad = grad_y.const_data_ptr<float>(),
                     *const r = rstd.const_data_ptr<float>();
  float *const to = grad_x.data_ptr<float>(), *const share = shares.data_ptr<float>();
  parallel_over(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto first = i * block, at = first * width;
      kernels::cpu::rms_norm_backward({from + at, w, std::min(block, rows - first), width},
                                      r + first, grad + at, to + at, share + i * width);
    }
  });
  return {grad_x, at::sum(shares, {0})};
}

Grads backward_plain(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& rstd) {
  const at::Tensor normed = at::mul(x, rstd);  // in the wider type, like everything below
  at::Tensor product = at::mul(normed, grad_y);
  const at::Tensor grad_weight = at::sum(product, {0}).to(x.scalar_type());
  const at::Tensor mean = at::mean(product.mul_(weight), {-1}, /*keepdim=*/true);
  at::mul_out(product, grad_y.to(normed.scalar_type()), weight);
  return {product.addcmul_(normed, mean, -1).mul_(rstd).to(x.scalar_type()), grad_weight};
}

}  // namespace

void RmsNorm::declare(Declaration& declaration, const std::string& name, std::int64_t width,
                      double epsilon) {
  weight_ = declaration.parameter(name + ".weight", {width}, Init::ones(), /*decay=*/false);
  epsilon_ = epsilon;
}

RmsNorm::Output RmsNorm::forward(const at::Tensor& x) const {
  if (ours(x)) return forward_cpu(x, weight_->value, epsilon_);
  const auto wide = at::toOpMathType(x.scalar_type());
  const at::Tensor rstd = at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, wide)
                              .square_()
                              .div_(static_cast<double>(x.size(-1)))
                              .add_(epsilon_)
                              .rsqrt_();
  return {at::mul(x, rstd).to(x.scalar_type()).mul_(weight_->value), rstd};
}

at::Tensor RmsNorm::backward(const at::Tensor& grad_y, const at::Tensor& x,
                             const at::Tensor& rstd) const {
  const auto [grad_x, grad_weight] = ours(x) && ours(grad_y)
                                         ? backward_cpu(grad_y, x, weight_->value, rstd)
                                         : backward_plain(grad_y, x, weight_->value, rstd);
  if (!weight_->trainable) return grad_x;
  if (const auto& group = weight_->group; group && group->rows_are_split())
    group->sum_over_rows(grad_weight);
  weight_->add_grad(grad_weight);
  return grad_x;
}

}  // namespace echelon
