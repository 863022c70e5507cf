#include "echelon/models/llama/llama_ends.h"

namespace echelon {
namespace {

// The tensors that the head keeps.
enum Saved : std::size_t {
  input,
  rstd,
  normed,  // dropped with selective recompute
  grad_logits,
  target_rows
};

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

void LlamaEmbedding::declare(Declaration& declaration) {
  tokens_.declare(declaration, "model.embed_tokens", options_.vocab, options_.width, 0.02);
}

at::Tensor LlamaEmbedding::forward(const at::Tensor& tokens, Pass& pass) {
  if (pass.keeps()) pass.saved = {tokens};
  return drop_.forward(tokens_.forward(tokens), pass);
}

at::Tensor LlamaEmbedding::backward(const at::Tensor& grad_dropped, Pass& pass) {
  tokens_.backward(drop_.backward(grad_dropped, pass), pass.saved[0]);
  return {};
}

void LlamaHead::declare(Declaration& declaration) {
  norm_.declare(declaration, "model.norm", options_.width, options_.llama.norm_epsilon);
  if (options_.tied)
    loss_.tie(declaration, "model.embed_tokens");
  else
    loss_.declare(declaration, "lm_head", options_.vocab, options_.width, 0.02);
}

at::Tensor LlamaHead::forward(const at::Tensor& x, Pass& pass) {
  auto norm = norm_.forward(rows(x));
  if (!pass.target.defined()) {
    const auto [samples, tokens] = pass.extent(x);
    return loss_.logits(norm.y).view({samples, tokens, options_.vocab});
  }
  const auto [loss, grad, target] = loss_.forward(norm.y, pass);
  if (pass.keeps())
    pass.saved = {x, norm.rstd, pass.selective ? at::Tensor() : norm.y, grad, target};
  return loss;
}

at::Tensor LlamaHead::backward(const at::Tensor& /*grad_output*/, Pass& pass) {
  auto& s = pass.saved;
  const at::Tensor x = rows(s[input]);
  if (!s[normed].defined()) s[normed] = norm_.forward(x).y;
  const at::Tensor grad_normed =
      loss_.backward({{}, s[grad_logits], s[target_rows]}, s[normed], pass);
  s[grad_logits].reset();
  return norm_.backward(grad_normed, x, s[rstd]).view_as(s[input]);
}

}  // namespace echelon
