#include "echelon/nn/gpt_block.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <fmt/format.h>

#include <cmath>

#include "echelon/nn/attention.h"

namespace echelon {
namespace {

// What forward keeps, by place in pass.saved; attention appends its own after `count`.
enum Saved : std::size_t {
  input,
  mean1,
  rstd1,
  normed1,
  qkv,
  attended,
  middle,
  mean2,
  rstd2,
  normed2,
  expanded,
  activated,
  count
};

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

void GptBlock::declare(Declaration& declaration) {
  const auto d = options_.width;
  const std::string name = fmt::format("transformer.h.{}.", index_);
  // GPT-2 scales the projections into the residual stream by the number of them.
  const double residual_stddev = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  norm1_.declare(declaration, name + "ln_1", d);
  attend_.declare(declaration, name + "attn.c_attn", d, 3 * d, 0.02);
  project_.declare(declaration, name + "attn.c_proj", d, d, residual_stddev);
  norm2_.declare(declaration, name + "ln_2", d);
  expand_.declare(declaration, name + "mlp.c_fc", d, 4 * d, 0.02);
  contract_.declare(declaration, name + "mlp.c_proj", 4 * d, d, residual_stddev);
}

at::Tensor GptBlock::forward(const at::Tensor& x, Pass& pass) {
  const auto batch = x.size(0), tokens = x.size(1), d = options_.width;
  const at::Tensor x_rows = rows(x);
  auto n1 = norm1_.forward(x_rows);
  const at::Tensor qkv3 = attend_.forward(n1.y).view({batch, tokens, 3 * d});
  std::vector<at::Tensor> attention_saved;
  const at::Tensor heads_out = attention(qkv3, options_.heads, attention_saved);
  const at::Tensor mid = project_.forward(rows(heads_out)).add_(x_rows);

  auto n2 = norm2_.forward(mid);
  const at::Tensor hidden = expand_.forward(n2.y);
  const at::Tensor active = at::gelu(hidden, "tanh");
  at::Tensor out = contract_.forward(active).add_(mid).view({batch, tokens, d});

  if (pass.training) {
    pass.saved = {x_rows, n1.mean, n1.rstd, n1.y, qkv3,   heads_out,
                  mid,    n2.mean, n2.rstd, n2.y, hidden, active};
    pass.saved.insert(pass.saved.end(), attention_saved.begin(), attention_saved.end());
  }
  return out;
}

at::Tensor GptBlock::backward(const at::Tensor& grad_output, Pass& pass) {
  auto& s = pass.saved;
  const at::Tensor grad_out = rows(grad_output);
  at::Tensor grad_hidden = contract_.backward(grad_out, s[activated]);
  s[activated].reset();
  at::gelu_backward_out(grad_hidden, grad_hidden, s[expanded], "tanh");
  s[expanded].reset();
  at::Tensor grad_mid =
      norm2_.backward(expand_.backward(grad_hidden, s[normed2]), s[middle], s[mean2], s[rstd2]);
  grad_hidden.reset();
  grad_mid.add_(grad_out);

  const at::Tensor grad_heads = project_.backward(grad_mid, rows(s[attended])).view_as(s[attended]);
  const at::Tensor grad_qkv =
      attention_backward(grad_heads, s[qkv], s[attended], options_.heads, &s[count]);
  at::Tensor grad_x =
      norm1_.backward(attend_.backward(rows(grad_qkv), s[normed1]), s[input], s[mean1], s[rstd1]);
  return grad_x.add_(grad_mid).view_as(grad_output);
}

}  // namespace echelon
