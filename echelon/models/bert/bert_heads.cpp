#include "echelon/models/bert/bert_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "echelon/nn/class_loss.h"
#include "echelon/nn/first_tokens.h"
#include "echelon/nn/gelu.h"

namespace echelon {
namespace {

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

namespace masked {
enum Saved : std::size_t {
  input,
  hidden,
  active,  // dropped with selective recompute
  mean,
  rstd,
  normed,  // likewise
  grad_logits,
  target_rows
};
}  // namespace masked

namespace classes {
enum Saved : std::size_t { first, pooled, dropped, grad_logits };
}  // namespace classes

// The head works on samples, not on rows.
Pass by_sample(const Pass& pass) {
  Pass samples;
  samples.training = pass.training;
  samples.draw = pass.draw;
  return samples;
}

}  // namespace

void BertMaskedHead::declare(Declaration& declaration) {
  const auto d = options_.width;
  transform_.declare(declaration, names_.transform, d, d, 0.02, Linear::Bias::yes,
                     Linear::Share::whole_on_rows);
  norm_.declare(declaration, names_.transform_norm, d, options_.bert.norm_epsilon);
  if (options_.tied)
    loss_.tie(declaration, names_.words);
  else
    loss_.declare(declaration, names_.decoder, options_.vocab, d, 0.02);
  loss_.declare_bias(declaration, names_.decoder_bias, options_.vocab);
}

at::Tensor BertMaskedHead::forward(const at::Tensor& x, Pass& pass) {
  const at::Tensor hidden = transform_.forward(rows(x));
  at::Tensor active = exact_gelu(hidden);
  auto norm = norm_.forward(active);
  if (!pass.target.defined()) {
    const auto [samples, tokens] = pass.extent(x);
    return loss_.logits(norm.y).view({samples, tokens, options_.vocab});
  }
  const auto [loss, grad, target] = loss_.forward(norm.y, pass);
  if (pass.selective) {
    active.reset();
    norm.y.reset();
  }
  if (pass.keeps()) pass.saved = {x, hidden, active, norm.mean, norm.rstd, norm.y, grad, target};
  return loss;
}

at::Tensor BertMaskedHead::backward(const at::Tensor& /*grad_output*/, Pass& pass) {
  using namespace masked;
  auto& s = pass.saved;
  if (!s[active].defined()) s[active] = exact_gelu(s[hidden]);
  if (!s[normed].defined()) s[normed] = norm_.forward(s[active]).y;
  const at::Tensor grad_normed =
      loss_.backward({{}, s[grad_logits], s[target_rows]}, s[normed], pass);
  s[grad_logits].reset();
  s[normed].reset();
  const at::Tensor grad_hidden = norm_.backward(grad_normed, s[active], s[mean], s[rstd]);
  s[active].reset();
  exact_gelu_backward_(grad_hidden, s[hidden]);
  return transform_.backward(grad_hidden, rows(s[input]), pass).view_as(s[input]);
}

BertClassHead::BertClassHead(const ModelOptions& options)
    : options_(options),
      names_(options),
      distilled_(BertSizes(options).distilled),
      drop_(options.dropout, names_.classifier) {}

void BertClassHead::declare(Declaration& declaration) {
  const auto d = options_.width;
  pooler_.declare(declaration, names_.pooler, d, d, 0.02, Linear::Bias::yes, Linear::Share::whole);
  classifier_.declare(declaration, names_.classifier, d, options_.task.labels, 0.02,
                      Linear::Bias::yes, Linear::Share::whole);
}

at::Tensor BertClassHead::forward(const at::Tensor& x, Pass& pass) {
  const at::Tensor first = first_tokens(x, pooler_.group(), pass);
  const at::Tensor hidden = pooler_.forward(first);
  const at::Tensor pooled = distilled_ ? at::relu(hidden) : at::tanh(hidden);
  const Pass samples = by_sample(pass);
  const at::Tensor dropped = options_.dropout > 0 ? drop_.forward(pooled.clone(), samples) : pooled;
  const at::Tensor logits = classifier_.forward(dropped);
  if (!pass.target.defined()) return logits;
  const auto [loss, grad] = class_loss(logits, pass);
  if (pass.keeps()) pass.saved = {first, pooled, dropped, grad};
  return loss;
}

at::Tensor BertClassHead::backward(const at::Tensor& /*grad_output*/, Pass& pass) {
  using namespace classes;
  const auto& s = pass.saved;
  const at::Tensor grad_dropped = classifier_.backward(s[grad_logits], s[dropped], pass);
  const at::Tensor grad_pooled = drop_.backward(grad_dropped, by_sample(pass));
  const at::Tensor grad_hidden = distilled_ ? at::threshold_backward(grad_pooled, s[pooled], 0)
                                            : at::tanh_backward(grad_pooled, s[pooled]);
  return first_tokens_backward(pooler_.backward(grad_hidden, s[first], pass), pooler_.group(),
                               pass);
}

}  // namespace echelon
