// With h = x A and the gradient g of y, an adaptation adds (scale g B^T) A^T to the gradient of x.
// The gradient of B is scale h^T g, and that of A is x^T (scale g B^T). h is computed again in
// backward: it costs rank / out of the product itself, and nothing has to be kept.
#include "echelon/nn/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <utility>

#include "echelon/nn/low_rank.h"
#include "echelon/nn/product.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

bool by_rows(const Parameter& weight) { return weight.split.kind == Split::Kind::row; }
// The ranks if the product takes whole(x); null if it takes x itself.
std::shared_ptr<TensorGroup> by_columns(const Parameter& weight) {
  return weight.split.is_part() && !by_rows(weight) ? weight.group : nullptr;
}

bool trains(const Parameter* parameter) { return parameter && parameter->trainable; }

Accumulated accumulated(Parameter& parameter) { return {parameter.grad, parameter.grad_beta()}; }

// The gradients of W and b, or of one of them if the other is frozen.
void add_gradients(Parameter& weight, Parameter* bias, const at::Tensor& x,
                   const at::Tensor& grad_y) {
  if (weight.trainable)
    product_gradient(x, grad_y, /*scale=*/1, accumulated(weight),
                     trains(bias) ? accumulated(*bias) : Accumulated{});
  else if (trains(bias))
    bias->add_grad(at::sum(grad_y, {0}));
}

// The same from this rank's rows, summed over the ranks in one exchange.
void add_gradients_of_rows(Parameter& weight, Parameter* bias, const at::Tensor& x,
                           const at::Tensor& grad_y) {
  const auto matrix = weight.trainable ? weight.numel() : 0;
  const at::Tensor both =
      at::empty({matrix + (trains(bias) ? bias->numel() : 0)}, grad_y.options());
  const at::Tensor of_bias = both.narrow(0, matrix, both.numel() - matrix);
  if (weight.trainable)
    product_gradient(x, grad_y, /*scale=*/1, {both.narrow(0, 0, matrix).view(weight.shape), 0},
                     trains(bias) ? Accumulated{of_bias, 0} : Accumulated{});
  else
    of_bias.copy_(at::sum(grad_y, {0}));
  weight.group->sum_over_rows(both);
  if (weight.trainable) weight.add_grad(both.narrow(0, 0, matrix));
  if (trains(bias)) bias->add_grad(of_bias);
}

// Columns of a product as this rank has them: every block divides evenly over the ranks.
struct OwnColumns {
  at::Tensor in_y, in_b, in_h;
};

// Calls fn with the columns of y, of B and of h = x A that belong together.
template <class Fn>
void for_columns(const LowRank& low_rank, std::int64_t parts, const at::Tensor& y,
                 const at::Tensor& b, const at::Tensor& h, Fn fn) {
  std::int64_t begin = 0;  // within B
  for (const auto& columns : low_rank.columns) {
    const auto size = columns.size / parts;
    fn(OwnColumns{y.narrow(1, columns.begin / parts, size), b.narrow(1, begin, size),
                  h.narrow(1, columns.factor * low_rank.rank, low_rank.rank)});
    begin += size;
  }
}

std::int64_t column_parts(const Parameter& weight) {
  return by_columns(weight) ? weight.split.parts : 1;
}

// Adds a gradient whose parts the ranks of a group have.
void add_summed(Parameter& parameter, const at::Tensor& part, TensorGroup& group) {
  group.all_reduce(part, ReduceOp::sum, "lora");
  parameter.add_grad(part);
}

// The adaptation of a product in a backward.
struct Adapted {
  const LowRank* low_rank;
  Parameter *weight, *a, *b;

  bool trains() const { return a->trainable || b->trainable; }

  // scale g B^T: a part of it if ranks split the columns.
  at::Tensor narrow_gradient(const at::Tensor& grad_y) const {
    const at::Tensor grad_h =
        at::zeros({grad_y.size(0), low_rank->factors * low_rank->rank}, grad_y.options());
    for_columns(*low_rank, column_parts(*weight), grad_y, b->value, grad_h,
                [&](const OwnColumns& own) {
                  at::Tensor(own.in_h).addmm_(own.in_y, own.in_b.t(), 1, low_rank->scale);
                });
    return grad_h;
  }

  // A as gradients that may be deferred need it: the parameter has no values by then if ranks share
  // them out.
  at::Tensor values_of_a(const Pass& pass) const {
    return pass.defer_weight_grads ? a->value.clone() : a->value;
  }

  void add_gradients(const at::Tensor& x, const at::Tensor& grad_y, const at::Tensor& grad_h,
                     const at::Tensor& a_values) const {
    if (b->trainable) add_b(product(x, a_values.t()), grad_y);
    if (a->trainable) add_a(x, grad_h);
  }

 private:
  void add_a(const at::Tensor& x, const at::Tensor& grad_h) const {
    const auto group = by_columns(*weight);
    if (!group) return product_gradient(x, grad_h, /*scale=*/1, accumulated(*a));
    const at::Tensor part = at::empty(a->shape, grad_h.options());
    product_gradient(x, grad_h, /*scale=*/1, {part, 0});
    add_summed(*a, part, *group);
  }

  void add_b(const at::Tensor& h, const at::Tensor& grad_y) const {
    const bool summed = by_rows(*weight);
    const at::Tensor into = summed ? at::empty(b->shape, grad_y.options()) : b->grad;
    const double beta = summed ? 0 : b->grad_beta();
    for_columns(*low_rank, column_parts(*weight), grad_y, into, h, [&](const OwnColumns& own) {
      product_gradient(own.in_h, own.in_y, low_rank->scale, {own.in_b, beta});
    });
    if (summed) add_summed(*b, into, *weight->group);
  }
};

}  // namespace

void Linear::declare(Declaration& declaration, const std::string& name, std::int64_t in,
                     std::int64_t out, double stddev, Bias bias, Share share) {
  share_ = share;
  const bool splits = share == Share::parts;
  low_rank_ = splits ? declaration.low_rank(name) : nullptr;
  if (low_rank_) {
    // The variance of PEFT's uniform distribution, between -1 and 1 over the root of `in`.
    const double narrow_stddev = 1 / std::sqrt(3 * static_cast<double>(in));
    a_ = declaration.parameter(low_rank_a(name), {in, low_rank_->factors * low_rank_->rank},
                               Init::normal(narrow_stddev), /*decay=*/true, /*trainable=*/true,
                               Splits::low_rank_in);
    b_ = declaration.parameter(low_rank_b(name), {low_rank_->rank, low_rank_->width()},
                               Init::zeros(), /*decay=*/true, /*trainable=*/true,
                               Splits::low_rank_out);
  }
  weight_ = declaration.parameter(name + ".weight", {in, out}, Init::normal(stddev),
                                  /*decay=*/true, /*trainable=*/true,
                                  splits ? Splits::matrix : Splits::no);
  if (bias == Bias::yes)
    bias_ = declaration.parameter(name + ".bias", {out}, Init::zeros(), /*decay=*/false,
                                  /*trainable=*/true, splits ? Splits::bias : Splits::no);
}

void Linear::add_low_rank(const at::Tensor& y, const at::Tensor& x) const {
  for_columns(*low_rank_, column_parts(*weight_), y, b_->value, product(x, a_->value.t()),
              [&](const OwnColumns& own) {
                at::Tensor(own.in_y).addmm_(own.in_h, own.in_b, 1, low_rank_->scale);
              });
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  const at::Tensor weight = weight_->value.t();
  if (by_rows(*weight_)) {
    at::Tensor part = product(x, weight);
    if (low_rank_) add_low_rank(part, x);
    at::Tensor y = weight_->group->sum(std::move(part));
    return bias_ ? y.add_(bias_->value) : y;
  }
  const auto group = by_columns(*weight_);
  const at::Tensor all = group ? group->whole(x) : x;
  const at::Tensor y = product(all, weight, bias_ ? bias_->value : at::Tensor());
  if (low_rank_) add_low_rank(y, all);
  return y;
}

at::Tensor Linear::backward(const at::Tensor& grad_y, const at::Tensor& x, Pass& pass) const {
  // In a row split the bias is whole: every rank computes its complete gradient from the same rows.
  const at::Tensor grad = by_rows(*weight_) ? weight_->group->whole(grad_y) : grad_y;
  const auto group = by_columns(*weight_);
  const Adapted adapted{low_rank_, weight_, a_, b_};
  const at::Tensor grad_h = low_rank_ ? adapted.narrow_gradient(grad) : at::Tensor(),
                   a_values = low_rank_ ? adapted.values_of_a(pass) : at::Tensor();
  const auto input = [&] {
    at::Tensor grad_x = product(grad, weight_->value);
    return low_rank_ ? grad_x.addmm_(grad_h, a_->value.t()) : grad_x;
  };
  const bool summed = share_ == Share::whole_on_rows && pass.rows_are_split;
  std::function<void(const at::Tensor&)> gradients;  // none if nothing trains
  if (weight_->trainable || trains(bias_) || (low_rank_ && adapted.trains()))
    gradients = [=, weight = weight_, bias = bias_](const at::Tensor& all) {
      if (adapted.low_rank) adapted.add_gradients(all, grad, grad_h, a_values);
      summed ? add_gradients_of_rows(*weight, bias, all, grad)
             : add_gradients(*weight, bias, all, grad);
    };
  return product_backward(group, x, pass, input, gradients);
}

}  // namespace echelon
