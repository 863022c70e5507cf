#include "echelon/nn/linear.h"

#include <ATen/ops/sum.h>

#include "echelon/nn/product.h"

namespace echelon {

void Linear::declare(Declaration& declaration, const std::string& name, std::int64_t in,
                     std::int64_t out, double stddev) {
  weight_ =
      declaration.parameter(name + ".weight", {in, out}, Init::normal(stddev), /*decay=*/true);
  bias_ = declaration.parameter(name + ".bias", {out}, Init::zeros(), /*decay=*/false);
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  return product(x, weight_->value.t(), bias_->value);
}

at::Tensor Linear::backward(const at::Tensor& grad_y, const at::Tensor& x) const {
  weight_->grad.addmm_(x.t(), grad_y, weight_->grad_beta(), 1);
  add_row_sum(*bias_, grad_y);
  return product(grad_y, weight_->value);
}

void add_row_sum(Parameter& parameter, const at::Tensor& rows) {
  if (parameter.grad_beta() == 0) {
    at::sum_out(parameter.grad, rows, /*dim=*/{0});
  } else {
    parameter.grad.add_(at::sum(rows, {0}));
  }
}

}  // namespace echelon
