#include "echelon/models/bert/bert_block.h"

#include "echelon/nn/attention.h"
#include "echelon/nn/gelu.h"

namespace echelon {
namespace {

// The tensors that forward keeps, by index in pass.saved; attention appends its own after `count`.
// With selective recompute, the dropped ones are undefined.
enum Saved : std::size_t {
  input,
  qkv,
  attended,
  sum1,
  mean1,
  rstd1,
  normed1,  // dropped
  expanded,
  activated,  // dropped
  sum2,
  mean2,
  rstd2,
  count
};

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

BertBlock::BertBlock(const ModelOptions& options, std::int64_t index)
    : options_(options),
      names_(options),
      name_(names_.block(index)),
      drop_attended_(options.dropout, name_ + "attention"),
      drop_contracted_(options.dropout, name_ + "mlp") {}

void BertBlock::declare(Declaration& declaration) {
  const auto d = options_.width, ffn = BertSizes(options_).ffn;
  const double epsilon = options_.bert.norm_epsilon;
  attend_.declare(declaration, name_ + names_.qkv, d, 3 * d, 0.02);
  project_.declare(declaration, name_ + names_.project, d, d, 0.02);
  norm1_.declare(declaration, name_ + names_.norm1, d, epsilon);
  expand_.declare(declaration, name_ + names_.expand, d, ffn, 0.02);
  contract_.declare(declaration, name_ + names_.contract, ffn, d, 0.02);
  norm2_.declare(declaration, name_ + names_.norm2, d, epsilon);
}

// As many as the projection returned.
std::int64_t BertBlock::heads_in(const at::Tensor& qkv) const {
  return qkv.size(2) / 3 / (options_.width / options_.heads);
}

// The second run of a recompute needs the last sum too, since a norm comes after it.
at::Tensor BertBlock::forward(const at::Tensor& x, Pass& pass) {
  const auto [samples, tokens] = pass.extent(x);
  const at::Tensor x_rows = rows(x);
  const at::Tensor qkv3 = attend_.forward(x_rows).view({samples, tokens, -1});
  std::vector<at::Tensor> attention_saved;
  const auto heads = heads_in(qkv3);
  const at::Tensor heads_out =
      attention(qkv3, heads, heads, attention_mask(pass, /*causal=*/false), attention_saved);
  const at::Tensor projected = project_.forward(rows(heads_out)).view_as(x);
  const at::Tensor middle = rows(drop_attended_.forward(projected, pass)).add_(x_rows);
  auto n1 = norm1_.forward(middle);

  const at::Tensor hidden = expand_.forward(n1.y);
  at::Tensor active = exact_gelu(hidden);
  const at::Tensor contracted = contract_.forward(active).view_as(x);
  const bool lean = pass.selective;
  if (lean) active.reset();
  const at::Tensor last = rows(drop_contracted_.forward(contracted, pass)).add_(n1.y);
  if (lean) n1.y.reset();
  auto n2 = norm2_.forward(last);

  if (pass.keeps()) {
    pass.saved = {x_rows, qkv3,   heads_out, middle, n1.mean, n1.rstd,
                  n1.y,   hidden, active,    last,   n2.mean, n2.rstd};
    pass.saved.insert(pass.saved.end(), attention_saved.begin(), attention_saved.end());
  }
  return n2.y.view_as(x);
}

at::Tensor BertBlock::backward(const at::Tensor& grad_output, Pass& pass) {
  auto& s = pass.saved;
  const at::Tensor grad_last = norm2_.backward(rows(grad_output), s[sum2], s[mean2], s[rstd2]);
  s[sum2].reset();
  if (!s[activated].defined()) s[activated] = exact_gelu(s[expanded]);
  const at::Tensor grad_contracted =
      drop_contracted_.backward(grad_last.view_as(grad_output), pass);
  at::Tensor grad_hidden = contract_.backward(rows(grad_contracted), s[activated], pass);
  s[activated].reset();
  exact_gelu_backward_(grad_hidden, s[expanded]);
  s[expanded].reset();
  if (!s[normed1].defined()) s[normed1] = norm1_.forward(s[sum1]).y;
  at::Tensor grad_normed = expand_.backward(grad_hidden, s[normed1], pass).add_(grad_last);
  grad_hidden.reset();
  s[normed1].reset();
  const at::Tensor grad_middle = norm1_.backward(grad_normed, s[sum1], s[mean1], s[rstd1]);
  grad_normed.reset();
  s[sum1].reset();

  const at::Tensor grad_projected = drop_attended_.backward(grad_middle.view_as(grad_output), pass);
  const at::Tensor grad_heads =
      project_.backward(rows(grad_projected), rows(s[attended]), pass).view_as(s[attended]);
  const auto heads = heads_in(s[qkv]);
  const at::Tensor grad_qkv = attention_backward(grad_heads, s[qkv], s[attended], heads, heads,
                                                 attention_mask(pass, /*causal=*/false), &s[count]);
  s[qkv].reset();
  s[attended].reset();
  return attend_.backward(rows(grad_qkv), s[input], pass).add_(grad_middle).view_as(grad_output);
}

}  // namespace echelon
