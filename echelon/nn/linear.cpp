#include "echelon/nn/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <functional>

#include "echelon/nn/product.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

bool by_rows(const Parameter& weight) { return weight.split.kind == Split::Kind::row; }
// The ranks if the product takes whole(x); null if it takes x itself.
std::shared_ptr<TensorGroup> by_columns(const Parameter& weight) {
  return weight.split.is_part() && !by_rows(weight) ? weight.group : nullptr;
}

// The gradients of W and b, of those that train.
void add_gradients(Parameter& weight, Parameter* bias, const at::Tensor& x,
                   const at::Tensor& grad_y) {
  if (!weight.trainable) return bias->add_grad(at::sum(grad_y, {0}));
  if (bias && !bias->trainable) bias = nullptr;
  product_gradient(x, grad_y, /*scale=*/1, {weight.grad, weight.grad_beta()},
                   bias ? Accumulated{bias->grad, bias->grad_beta()} : Accumulated{});
}

// The same from this rank's rows, summed over the ranks in one exchange.
void add_gradients_of_rows(Parameter& weight, Parameter* bias, const at::Tensor& x,
                           const at::Tensor& grad_y) {
  const auto matrix = weight.numel();
  const at::Tensor both = at::empty({matrix + (bias ? bias->numel() : 0)}, grad_y.options());
  const at::Tensor of_weight = both.narrow(0, 0, matrix).view(weight.shape),
                   of_bias = both.narrow(0, matrix, both.numel() - matrix);
  product_gradient(x, grad_y, /*scale=*/1, {of_weight, 0},
                   bias ? Accumulated{of_bias, 0} : Accumulated{});
  weight.group->sum_over_rows(both);
  weight.add_grad(of_weight);
  if (bias) bias->add_grad(of_bias);
}

}  // namespace

void Linear::declare(Declaration& declaration, const std::string& name, std::int64_t in,
                     std::int64_t out, double stddev, Bias bias, Share share) {
  share_ = share;
  const bool splits = share == Share::parts;
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
  const bool summed = share_ == Share::whole_on_rows && pass.rows_are_split;
  std::function<void(const at::Tensor&)> gradients;  // none if neither W nor b trains
  if (weight_->trainable || (bias_ && bias_->trainable))
    gradients = [weight = weight_, bias = bias_, grad, summed](const at::Tensor& all) {
      summed ? add_gradients_of_rows(*weight, bias, all, grad)
             : add_gradients(*weight, bias, all, grad);
    };
  return product_backward(
      by_columns(*weight_), x, pass, [&] { return product(grad, weight_->value); }, gradients);
}

}  // namespace echelon
