#include "echelon/models/gpt2/gpt_block.h"

#include <fmt/format.h>

#include <cmath>

#include "echelon/nn/attention.h"
#include "echelon/nn/gelu.h"

namespace echelon {
namespace {

// The tensors that forward keeps, by index in pass.saved; attention appends its own after `count`.
// With selective recompute, the dropped ones are undefined.
enum Saved : std::size_t {
  input,
  mean1,
  rstd1,
  normed1,  // dropped
  qkv,
  attended,
  middle,
  mean2,
  rstd2,
  normed2,  // dropped
  expanded,
  activated,  // dropped
  count
};

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

GptBlock::GptBlock(const ModelOptions& options, int index)
    : options_(options),
      name_(fmt::format("transformer.h.{}.", index)),
      drop_attended_(options.dropout, name_ + "attn"),
      drop_contracted_(options.dropout, name_ + "mlp") {}

void GptBlock::declare(Declaration& declaration) {
  const auto d = options_.width;
  // GPT-2 scales the initial projections into the residual stream by their number.
  const double residual_stddev = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  norm1_.declare(declaration, name_ + "ln_1", d);
  attend_.declare(declaration, name_ + "attn.c_attn", d, 3 * d, 0.02);
  project_.declare(declaration, name_ + "attn.c_proj", d, d, residual_stddev);
  norm2_.declare(declaration, name_ + "ln_2", d);
  expand_.declare(declaration, name_ + "mlp.c_fc", d, 4 * d, 0.02);
  contract_.declare(declaration, name_ + "mlp.c_proj", 4 * d, d, residual_stddev);
}

// As many as the projection returned.
std::int64_t GptBlock::heads_in(const at::Tensor& qkv) const {
  return qkv.size(2) / 3 / (options_.width / options_.heads);
}

at::Tensor GptBlock::forward(const at::Tensor& x, Pass& pass) {
  const auto [samples, tokens] = pass.extent(x);
  const at::Tensor x_rows = rows(x);
  auto n1 = norm1_.forward(x_rows);
  const at::Tensor qkv3 = attend_.forward(n1.y).view({samples, tokens, -1});
  const bool lean = pass.selective;
  if (lean) n1.y.reset();
  std::vector<at::Tensor> attention_saved;
  const AttentionMask mask = attention_mask(pass, /*causal=*/true);
  const auto heads = heads_in(qkv3);
  const at::Tensor heads_out = attention(qkv3, heads, heads, mask, attention_saved);
  const at::Tensor projected = project_.forward(rows(heads_out)).view_as(x);
  const at::Tensor mid = rows(drop_attended_.forward(projected, pass)).add_(x_rows);

  auto n2 = norm2_.forward(mid);
  const at::Tensor hidden = expand_.forward(n2.y);
  if (lean) n2.y.reset();
  at::Tensor active = tanh_gelu(hidden);
  at::Tensor out;
  if (pass.run != Pass::Run::again) {
    out = contract_.forward(active).view_as(x);
    out = drop_contracted_.forward(out, pass).add_(mid.view_as(x));
  }
  if (lean) active.reset();

  if (pass.keeps()) {
    pass.saved = {x_rows, n1.mean, n1.rstd, n1.y, qkv3,   heads_out,
                  mid,    n2.mean, n2.rstd, n2.y, hidden, active};
    pass.saved.insert(pass.saved.end(), attention_saved.begin(), attention_saved.end());
  }
  return out;
}

at::Tensor GptBlock::backward(const at::Tensor& grad_output, Pass& pass) {
  auto& s = pass.saved;
  const at::Tensor grad_out = rows(grad_output);
  if (!s[activated].defined()) s[activated] = tanh_gelu(s[expanded]);
  at::Tensor grad_hidden =
      contract_.backward(rows(drop_contracted_.backward(grad_output, pass)), s[activated], pass);
  s[activated].reset();
  tanh_gelu_backward_(grad_hidden, s[expanded]);
  s[expanded].reset();
  if (!s[normed2].defined()) s[normed2] = norm2_.forward(s[middle]).y;
  at::Tensor grad_mid = norm2_.backward(expand_.backward(grad_hidden, s[normed2], pass), s[middle],
                                        s[mean2], s[rstd2]);
  grad_hidden.reset();
  s[normed2].reset();
  s[middle].reset();
  grad_mid.add_(grad_out);

  const at::Tensor grad_projected = drop_attended_.backward(grad_mid.view_as(grad_output), pass);
  const at::Tensor grad_heads =
      project_.backward(rows(grad_projected), rows(s[attended]), pass).view_as(s[attended]);
  const auto heads = heads_in(s[qkv]);
  const at::Tensor grad_qkv = attention_backward(grad_heads, s[qkv], s[attended], heads, heads,
                                                 attention_mask(pass, /*causal=*/true), &s[count]);
  s[qkv].reset();
  s[attended].reset();
  if (!s[normed1].defined()) s[normed1] = norm1_.forward(s[input]).y;
  at::Tensor grad_x = norm1_.backward(attend_.backward(rows(grad_qkv), s[normed1], pass), s[input],
                                      s[mean1], s[rstd1]);
  return grad_x.add_(grad_mid).view_as(grad_output);
}

}  // namespace echelon
