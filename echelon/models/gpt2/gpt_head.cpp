#include "echelon/models/gpt2/gpt_head.h"

namespace echelon {
namespace {

enum Saved : std::size_t {
  input,
  mean,
  rstd,
  normed,  // dropped with selective recompute
  grad_logits,
  target_rows
};

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

void GptHead::declare(Declaration& declaration) {
  norm_.declare(declaration, "transformer.ln_f", options_.width);
  if (options_.tied)
    loss_.tie(declaration, "transformer.wte");
  else
    loss_.declare(declaration, "lm_head", options_.vocab, options_.width, 0.02);
}

at::Tensor GptHead::forward(const at::Tensor& x, Pass& pass) {
  auto norm = norm_.forward(rows(x));
  if (!pass.target.defined()) {
    const auto [samples, tokens] = pass.extent(x);
    return loss_.logits(norm.y).view({samples, tokens, options_.vocab});
  }
  const auto [loss, grad, target] = loss_.forward(norm.y, pass);
  if (pass.keeps())
    pass.saved = {x, norm.mean, norm.rstd, pass.selective ? at::Tensor() : norm.y, grad, target};
  return loss;
}

at::Tensor GptHead::backward(const at::Tensor& /*grad_output*/, Pass& pass) {
  auto& s = pass.saved;
  const at::Tensor x = rows(s[input]);
  if (!s[normed].defined()) s[normed] = norm_.forward(x).y;
  const at::Tensor grad_normed =
      loss_.backward({{}, s[grad_logits], s[target_rows]}, s[normed], pass);
  s[grad_logits].reset();
  return norm_.backward(grad_normed, x, s[mean], s[rstd]).view_as(s[input]);
}

}  // namespace echelon
