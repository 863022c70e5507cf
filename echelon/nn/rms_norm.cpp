// With n = x / rms(x): y = n w, so the gradient of w is the sum of g n over the rows, and that of x
// is (g w - n mean(g w n)) / rms(x). bf16 and fp16 are normalised in fp32 and rounded before they
// are multiplied with the weight.
#include "echelon/nn/rms_norm.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "echelon/nn/tensor_group.h"

namespace echelon {

void RmsNorm::declare(Declaration& declaration, const std::string& name, std::int64_t width,
                      double epsilon) {
  weight_ = declaration.parameter(name + ".weight", {width}, Init::ones(), /*decay=*/false);
  epsilon_ = epsilon;
}

RmsNorm::Output RmsNorm::forward(const at::Tensor& x) const {
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
  const at::Tensor normed = at::mul(x, rstd);  // in the wider type, as all that follows
  at::Tensor product = at::mul(normed, grad_y);
  const at::Tensor grad_weight = at::sum(product, {0}).to(x.scalar_type());
  const at::Tensor mean = at::mean(product.mul_(weight_->value), {-1}, /*keepdim=*/true);
  at::mul_out(product, grad_y.to(normed.scalar_type()), weight_->value);
  const at::Tensor grad_x = product.addcmul_(normed, mean, -1).mul_(rstd).to(x.scalar_type());
  if (const auto& group = weight_->group; group && group->rows_are_split())
    group->sum_over_rows(grad_weight);
  weight_->add_grad(grad_weight);
  return grad_x;
}

}  // namespace echelon
