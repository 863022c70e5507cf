// The loss of a row with logits z and target t is log sum exp(z) - z[t], and its gradient
// softmax(z) - onehot(t). Forward makes both in one pass over blocks of rows: the logits of a block
// are turned into its gradient in place, so a training step holds one [rows, vocab] tensor (the
// gradient) and no second one, and evaluation holds one block.
//
// A probability of a large vocabulary is below what fp16 has. There the rows of a block are
// computed in fp32, and multiplied by the loss scale and the share of the mean before they are
// rounded.
#include "echelon/nn/gpt_head.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace echelon {
namespace {

// Large enough that the products run at full speed, small enough that a block's temporaries stay
// few.
std::int64_t rows_a_block(const at::Tensor& x, std::int64_t vocab) {
  const std::int64_t bytes = x.is_cpu() ? std::int64_t{4} << 20 : std::int64_t{512} << 20;
  return std::max<std::int64_t>(1, bytes / (vocab * x.element_size()));
}

bool is_half(const at::Tensor& x) { return x.scalar_type() == at::kHalf; }

// The mean's share of one row.
double share_of(const Pass& pass, const at::Tensor& rows) {
  return pass.weight / static_cast<double>(rows.size(0));
}

}  // namespace

void GptHead::declare(Declaration& declaration) {
  norm_.declare(declaration, "transformer.ln_f", options_.width);
  weight_ = options_.tied
                ? declaration.tied("transformer.wte.weight")
                : declaration.parameter("lm_head.weight", {options_.vocab, options_.width},
                                        Init::normal(0.02), /*decay=*/true);
}

at::Tensor GptHead::forward(const at::Tensor& x, Pass& pass) {
  const at::Tensor rows = x.view({-1, options_.width});
  auto normed = norm_.forward(rows);
  const at::Tensor weight = weight_->value.t();
  if (!pass.target.defined())
    return at::mm(normed.y, weight).view({x.size(0), x.size(1), options_.vocab});

  const at::Tensor target = pass.target.reshape({-1, 1});
  const auto n = rows.size(0), block = std::min(n, rows_a_block(rows, options_.vocab));
  at::Tensor loss = at::zeros({}, rows.options().dtype(at::kDouble));
  at::Tensor grad = at::empty({pass.training ? n : block, options_.vocab}, rows.options());
  for (std::int64_t at = 0; at < n; at += block) {
    const auto size = std::min(block, n - at);
    at::Tensor logits = grad.narrow(0, pass.training ? at : 0, size);
    const at::Tensor goal = target.narrow(0, at, size);
    at::mm_out(logits, normed.y.narrow(0, at, size), weight);
    at::Tensor log_probability = is_half(logits)
                                     ? at::log_softmax(logits, 1, at::kFloat)
                                     : at::_log_softmax(logits, 1, /*half_to_float=*/false);
    loss.sub_(log_probability.gather(1, goal).sum(at::kDouble));
    if (!pass.training) continue;
    at::Tensor row_grad = is_half(logits) ? log_probability : logits;
    at::exp_out(row_grad, log_probability);
    row_grad.scatter_add_(1, goal, at::full({}, -1, row_grad.options()).expand({size, 1}));
    if (!is_half(logits)) continue;
    row_grad.mul_(share_of(pass, rows));
    if (pass.scale.defined()) row_grad.mul_(pass.scale);
    logits.copy_(row_grad);
  }
  if (pass.keeps())
    pass.saved = {rows, normed.mean, normed.rstd, pass.selective ? at::Tensor() : normed.y, grad};
  return loss.div_(static_cast<double>(n));
}

at::Tensor GptHead::backward(const at::Tensor& /*grad_output*/, Pass& pass) {
  const at::Tensor &rows = pass.saved[0], &mean = pass.saved[1], &rstd = pass.saved[2];
  const at::Tensor normed = pass.saved[3].defined() ? pass.saved[3] : norm_.forward(rows).y;
  at::Tensor grad_logits = std::move(pass.saved[4]);
  const double scale = is_half(rows) ? 1 : share_of(pass, rows);  // fp16: they have it already
  weight_->grad.addmm_(grad_logits.t(), normed, weight_->grad_beta(), scale);
  const at::Tensor nothing = at::empty({options_.width}, rows.options());
  const at::Tensor grad_normed = at::addmm(nothing, grad_logits, weight_->value, /*beta=*/0, scale);
  grad_logits.reset();
  const auto batch = pass.target.size(0);
  return norm_.backward(grad_normed, rows, mean, rstd).view({batch, -1, options_.width});
}

}  // namespace echelon
