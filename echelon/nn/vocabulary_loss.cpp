// The loss of a row with logits z and target t is log sum exp(z) - z[t], and its gradient is
// softmax(z) - onehot(t). Forward computes both in one pass over blocks of rows: it turns the
// logits of a block into the block's gradient in place. A training step therefore holds a single
// [rows, vocab] tensor (the gradient), and evaluation holds one block.
//
// With a large vocabulary, probabilities fall below the range of fp16. For fp16 the rows of a block
// are therefore computed in fp32 and multiplied by the loss scale and the row's share of the mean
// before they are rounded.
//
// A rank with a part of the vocabulary goes through the blocks twice. The first pass computes, for
// every row, its largest logit m and the sum s of exp(z - m). With M the largest m of all ranks,
// the row's sum is the sum of all ranks' s exp(m - M). The target's logit is the sum of its owner's
// value and the other ranks' zeros. The second pass computes the gradient, exp(z - log sum exp(z)),
// and the target's owner subtracts 1 at the target. Padding has logits of minus infinity, so its
// probability and gradient are zero.
#include "echelon/nn/vocabulary_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "echelon/nn/product.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/nn/token_table.h"

namespace echelon {
namespace {

// Large enough that products run at full speed, small enough to limit a block's temporary memory.
std::int64_t rows_a_block(const at::Tensor& x, std::int64_t vocab) {
  const std::int64_t bytes = x.is_cpu() ? std::int64_t{4} << 20 : std::int64_t{512} << 20;
  return std::max<std::int64_t>(1, bytes / (vocab * x.element_size()));
}

bool is_half(const at::Tensor& x) { return x.scalar_type() == at::kHalf; }
// On a CPU, log_softmax in bf16 rounds the logarithm of a row's sum and then the result, which
// makes losses wrong by about 0.01.
bool is_coarse(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kBFloat16; }

// One row's share of the mean.
double share_of(const Pass& pass) { return pass.weight / static_cast<double>(pass.target.numel()); }

// For fp16, does here what backward does for the other types.
void scale_and_round(const at::Tensor& row_grad, const Pass& pass, at::Tensor logits) {
  row_grad.mul_(share_of(pass));
  if (pass.scale.defined()) row_grad.mul_(pass.scale);
  logits.copy_(row_grad);
}

}  // namespace

void VocabularyLoss::declare(Declaration& declaration, const std::string& name, std::int64_t vocab,
                             std::int64_t width, double stddev) {
  weight_ = declaration.parameter(name + ".weight", {vocab, width}, Init::normal(stddev),
                                  /*decay=*/true, /*trainable=*/true, Splits::table);
}

void VocabularyLoss::tie(Declaration& declaration, const std::string& name) {
  weight_ = declaration.tied(name + ".weight", Splits::table);
}

at::Tensor VocabularyLoss::logits(const at::Tensor& x) const {
  const at::Tensor weight = weight_->value.t();
  if (!weight_->split.is_part()) return at::mm(x, weight);
  TensorGroup& group = *weight_->group;
  Split columns = weight_->split;
  columns.dimension = 1;
  return assemble(group.gather(at::mm(group.whole(x), weight)), columns);
}

VocabularyLoss::Output VocabularyLoss::forward(const at::Tensor& x, const Pass& pass) const {
  return weight_->split.is_part() ? part(x, pass) : whole(x, pass);
}

VocabularyLoss::Output VocabularyLoss::whole(const at::Tensor& x, const Pass& pass) const {
  const at::Tensor weight = weight_->value.t();
  const at::Tensor target = pass.target.reshape({-1, 1});
  const auto n = x.size(0), vocab = weight.size(1), block = std::min(n, rows_a_block(x, vocab));
  at::Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  at::Tensor grad = at::empty({pass.training ? n : block, vocab}, x.options());
  for (std::int64_t at = 0; at < n; at += block) {
    const auto size = std::min(block, n - at);
    at::Tensor logits = grad.narrow(0, pass.training ? at : 0, size);
    const at::Tensor goal = target.narrow(0, at, size);
    at::mm_out(logits, x.narrow(0, at, size), weight);
    at::Tensor log_probability = is_half(logits) || is_coarse(logits)
                                     ? at::log_softmax(logits, 1, at::kFloat)
                                     : at::_log_softmax(logits, 1, /*half_to_float=*/false);
    loss.sub_(log_probability.gather(1, goal).sum(at::kDouble));
    if (!pass.training) continue;
    at::Tensor row_grad = is_half(logits) ? log_probability : logits;
    at::exp_out(row_grad, log_probability);
    row_grad.scatter_add_(1, goal, at::full({}, -1, row_grad.options()).expand({size, 1}));
    if (is_half(logits)) scale_and_round(row_grad, pass, logits);
  }
  return {loss.div_(static_cast<double>(n)), pass.training ? grad : at::Tensor()};
}

VocabularyLoss::Output VocabularyLoss::part(const at::Tensor& x, const Pass& pass) const {
  TensorGroup& group = *weight_->group;
  const Split& vocabulary = weight_->split;
  const at::Tensor all = group.whole(x), weight = weight_->value.t();
  const auto n = all.size(0), vocab = weight.size(1), filled = vocabulary.filled();
  const auto block = std::min(n, rows_a_block(x, vocab));
  const auto wide = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const auto [goal, foreign] = own_tokens(pass.target.reshape({-1, 1}), vocabulary);

  at::Tensor grad = at::empty({pass.training ? n : block, vocab}, x.options());
  const at::Tensor largest = at::empty({n, 1}, wide), sums = at::empty({2, n, 1}, wide);
  const at::Tensor exponentials = sums.select(0, 0), target = sums.select(0, 1);
  for (std::int64_t at = 0; at < n; at += block) {
    const auto size = std::min(block, n - at);
    const auto rows = [&](const at::Tensor& of) { return of.narrow(0, at, size); };
    at::Tensor logits = grad.narrow(0, pass.training ? at : 0, size);
    at::mm_out(logits, rows(all), weight);
    logits.narrow(1, filled, vocab - filled).fill_(-std::numeric_limits<double>::infinity());
    const at::Tensor z = logits.to(wide.dtype());
    at::Tensor most = rows(largest), sum = rows(exponentials);
    // Finite even on a rank that has only padding.
    at::amax_out(most, z, 1, /*keepdim=*/true).clamp_min_(std::numeric_limits<float>::lowest());
    at::sum_out(sum, (z - most).exp_(), {1}, /*keepdim=*/true);
    rows(target).copy_(z.gather(1, rows(goal)).masked_fill_(rows(foreign), 0));
  }
  const at::Tensor top = largest.clone();
  group.all_reduce(top, ReduceOp::max, "vocabulary");
  exponentials.mul_((largest - top).exp_());
  group.all_reduce(sums, ReduceOp::sum, "vocabulary");
  const at::Tensor log_sum = exponentials.log().add_(top);
  at::Tensor loss = (log_sum - target).sum(at::kDouble).div_(static_cast<double>(n));
  if (!pass.training) return {loss, {}};

  for (std::int64_t at = 0; at < n; at += block) {
    const auto rows = [&](const at::Tensor& of) {
      return of.narrow(0, at, std::min(block, n - at));
    };
    const at::Tensor logits = rows(grad);
    at::Tensor row_grad = is_half(logits) ? logits.to(at::kFloat) : logits;
    row_grad.sub_(rows(log_sum)).exp_();
    row_grad.scatter_add_(1, rows(goal), rows(foreign).to(row_grad.scalar_type()).sub_(1));
    if (is_half(logits)) scale_and_round(row_grad, pass, logits);
  }
  return {loss, grad};
}

at::Tensor VocabularyLoss::backward(const at::Tensor& grad, const at::Tensor& x, Pass& pass) const {
  const double scale = is_half(x) ? 1 : share_of(pass);  // fp16: already in the gradient
  return product_backward(
      weight_->split.is_part() ? weight_->group : nullptr, x, pass,
      [&] {
        const at::Tensor nothing = at::empty({x.size(1)}, x.options());
        return at::addmm(nothing, grad, weight_->value, /*beta=*/0, scale);
      },
      [weight = weight_, grad, scale](const at::Tensor& all) {
        product_gradient(grad, all, scale, {weight->grad, weight->grad_beta()});
      });
}

}  // namespace echelon
