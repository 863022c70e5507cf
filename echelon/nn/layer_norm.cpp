#include "echelon/nn/layer_norm.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/stack.h>

#include "echelon/nn/tensor_group.h"

namespace echelon {

void LayerNorm::declare(Declaration& declaration, const std::string& name, std::int64_t width,
                        double epsilon) {
  weight_ = declaration.parameter(name + ".weight", {width}, Init::ones(), /*decay=*/false);
  bias_ = declaration.parameter(name + ".bias", {width}, Init::zeros(), /*decay=*/false);
  epsilon_ = epsilon;
}

LayerNorm::Output LayerNorm::forward(const at::Tensor& x) const {
  auto [y, mean, rstd] =
      at::native_layer_norm(x, weight_->shape, weight_->value, bias_->value, epsilon_);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

at::Tensor LayerNorm::backward(const at::Tensor& grad_y, const at::Tensor& x,
                               const at::Tensor& mean, const at::Tensor& rstd) const {
  auto [grad_x, grad_weight, grad_bias] = at::native_layer_norm_backward(
      grad_y, x, weight_->shape, mean, rstd, weight_->value, bias_->value, {true, true, true});
  if (!weight_->trainable && !bias_->trainable) return grad_x;
  if (const auto& group = weight_->group; group && group->rows_are_split()) {
    const at::Tensor both = at::stack({grad_weight, grad_bias});
    group->sum_over_rows(both);
    grad_weight = both.select(0, 0);
    grad_bias = both.select(0, 1);
  }
  weight_->add_grad(grad_weight);
  bias_->add_grad(grad_bias);
  return grad_x;
}

}  // namespace echelon
