#include "echelon/models/llama/llama_block.h"

#include <fmt/format.h>

#include <cmath>

#include "echelon/nn/attention.h"
#include "echelon/nn/rotary.h"
#include "echelon/nn/swiglu.h"

namespace echelon {
namespace {

// The tensors that forward keeps, by index in pass.saved; attention appends its own after `count`.
// With selective recompute, the dropped ones are undefined.
enum Saved : std::size_t {
  input,
  rstd1,
  normed1,  // dropped
  qkv,      // rotated
  attended,
  middle,
  rstd2,
  normed2,  // dropped
  expanded,
  activated,  // dropped
  count
};

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

LlamaBlock::LlamaBlock(const ModelOptions& options, int index, std::shared_ptr<Rotary> rotary)
    : options_(options),
      sizes_(options),
      name_(fmt::format("model.layers.{}.", index)),
      rotary_(std::move(rotary)),
      drop_attended_(options.dropout, name_ + "self_attn"),
      drop_contracted_(options.dropout, name_ + "mlp") {}

void LlamaBlock::declare(Declaration& declaration) {
  const auto d = options_.width, ffn = sizes_.ffn;
  const double epsilon = options_.llama.norm_epsilon;
  // Scales the initial projections into the residual stream by their number, as GPT-2 does.
  const double residual_stddev = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  constexpr auto no_bias = Linear::Bias::no;
  norm1_.declare(declaration, name_ + "input_layernorm", d, epsilon);
  attend_.declare(declaration, name_ + "self_attn.qkv_proj", d,
                  sizes_.all_heads() * sizes_.head_width, 0.02, no_bias);
  project_.declare(declaration, name_ + "self_attn.o_proj", d, d, residual_stddev, no_bias);
  norm2_.declare(declaration, name_ + "post_attention_layernorm", d, epsilon);
  expand_.declare(declaration, name_ + "mlp.gate_up_proj", d, 2 * ffn, 0.02, no_bias);
  contract_.declare(declaration, name_ + "mlp.down_proj", ffn, d, residual_stddev, no_bias);
}

void LlamaBlock::bind(at::Device device, at::ScalarType type) { rotary_->bind(device, type); }

LlamaBlock::Heads LlamaBlock::heads_in(const at::Tensor& qkv) const {
  const auto ranks = sizes_.all_heads() * sizes_.head_width / qkv.size(2);
  return {sizes_.heads / ranks, sizes_.kv_heads / ranks};
}

at::Tensor LlamaBlock::forward(const at::Tensor& x, Pass& pass) {
  const auto [samples, tokens] = pass.extent(x);
  const at::Tensor x_rows = rows(x);
  auto n1 = norm1_.forward(x_rows);
  const at::Tensor qkv3 = attend_.forward(n1.y).view({samples, tokens, -1});
  const bool lean = pass.selective;
  if (lean) n1.y.reset();
  const auto [queries, keys] = heads_in(qkv3);
  rotary_->rotate(qkv3, queries + keys, Rotary::Direction::forth, pass);
  std::vector<at::Tensor> attention_saved;
  const AttentionMask mask = attention_mask(pass, /*causal=*/true);
  const at::Tensor heads_out = attention(qkv3, queries, keys, mask, attention_saved);
  const at::Tensor projected = project_.forward(rows(heads_out)).view_as(x);
  const at::Tensor mid = rows(drop_attended_.forward(projected, pass)).add_(x_rows);

  auto n2 = norm2_.forward(mid);
  const at::Tensor hidden = expand_.forward(n2.y);
  if (lean) n2.y.reset();
  at::Tensor active = swiglu(hidden);
  at::Tensor out;
  if (pass.run != Pass::Run::again) {
    out = contract_.forward(active).view_as(x);
    out = drop_contracted_.forward(out, pass).add_(mid.view_as(x));
  }
  if (lean) active.reset();

  if (pass.keeps()) {
    pass.saved = {x_rows, n1.rstd, n1.y, qkv3, heads_out, mid, n2.rstd, n2.y, hidden, active};
    pass.saved.insert(pass.saved.end(), attention_saved.begin(), attention_saved.end());
  }
  return out;
}

at::Tensor LlamaBlock::backward(const at::Tensor& grad_output, Pass& pass) {
  auto& s = pass.saved;
  if (!s[activated].defined()) s[activated] = swiglu(s[expanded]);
  at::Tensor grad_active =
      contract_.backward(rows(drop_contracted_.backward(grad_output, pass)), s[activated], pass);
  s[activated].reset();
  at::Tensor grad_hidden = swiglu_backward(grad_active, s[expanded]);
  grad_active.reset();
  s[expanded].reset();
  if (!s[normed2].defined()) s[normed2] = norm2_.forward(s[middle]).y;
  at::Tensor grad_mid =
      norm2_.backward(expand_.backward(grad_hidden, s[normed2], pass), s[middle], s[rstd2]);
  grad_hidden.reset();
  s[normed2].reset();
  s[middle].reset();
  grad_mid.add_(rows(grad_output));

  const at::Tensor grad_projected = drop_attended_.backward(grad_mid.view_as(grad_output), pass);
  const at::Tensor grad_heads =
      project_.backward(rows(grad_projected), rows(s[attended]), pass).view_as(s[attended]);
  const auto [queries, keys] = heads_in(s[qkv]);
  const at::Tensor grad_qkv = attention_backward(grad_heads, s[qkv], s[attended], queries, keys,
                                                 attention_mask(pass, /*causal=*/true), &s[count]);
  rotary_->rotate(grad_qkv, queries + keys, Rotary::Direction::back, pass);
  s[qkv].reset();
  s[attended].reset();
  if (!s[normed1].defined()) s[normed1] = norm1_.forward(s[input]).y;
  at::Tensor grad_x =
      norm1_.backward(attend_.backward(rows(grad_qkv), s[normed1], pass), s[input], s[rstd1]);
  return grad_x.add_(grad_mid).view_as(grad_output);
}

}  // namespace echelon
