#include "echelon/nn/linear.h"

#include "echelon/nn/product.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

bool by_rows(const Parameter& weight) { return weight.split.kind == Split::Kind::row; }
// The ranks if the product takes whole(x); null if it takes x itself.
std::shared_ptr<TensorGroup> by_columns(const Parameter& weight) {
  return weight.split.is_part() && !by_rows(weight) ? weight.group : nullptr;
}

}  // namespace

void Linear::declare(Declaration& declaration, const std::string& name, std::int64_t in,
                     std::int64_t out, double stddev, Bias bias, May may) {
  const bool splits = may == May::split;
  weight_ = declaration.parameter(name + ".weight", {in, out}, Init::normal(stddev),
                                  /*decay=*/true, /*trainable=*/true,
                                  splits ? Splits::matrix : Splits::no);
  if (bias == Bias::yes)
    bias_ = declaration.parameter(name + ".bias", {out}, Init::zeros(), /*decay=*/false,
                                  /*trainable=*/true, splits ? Splits::bias : Splits::no);
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  const at::Tensor weight = weight_->value.t();
  if (by_rows(*weight_)) {
    at::Tensor y = weight_->group->sum(product(x, weight));
    return bias_ ? y.add_(bias_->value) : y;
  }
  const auto group = by_columns(*weight_);
  return product(group ? group->whole(x) : x, weight, bias_ ? bias_->value : at::Tensor());
}

at::Tensor Linear::backward(const at::Tensor& grad_y, const at::Tensor& x, Pass& pass) const {
  // In a row split the bias is whole: every rank computes its complete gradient from the same rows.
  const at::Tensor grad = by_rows(*weight_) ? weight_->group->whole(grad_y) : grad_y;
  return product_backward(
      by_columns(*weight_), x, pass, [&] { return product(grad, weight_->value); },
      [weight = weight_, bias = bias_, grad](const at::Tensor& all) {
        product_gradient(all, grad, /*scale=*/1, {weight->grad, weight->grad_beta()},
                         bias ? Accumulated{bias->grad, bias->grad_beta()} : Accumulated{});
      });
}

}  // namespace echelon
