#include "echelon/nn/gpt_embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/sum.h>

#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

// table[tokens[i]] += rows[i] in the order of i, so the same bits every time; threads split the
// columns.
template <class T>
void scatter_rows(const at::Tensor& table, const at::Tensor& tokens, const at::Tensor& rows) {
  const auto width = table.size(1), n = tokens.numel();
  T* const out = table.data_ptr<T>();
  const T* const in = rows.const_data_ptr<T>();
  const auto* const token = tokens.const_data_ptr<std::int64_t>();
  parallel_over(table[0], 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      T* const to = out + token[i] * width;
      const T* const from = in + i * width;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

void GptEmbedding::declare(Declaration& declaration) {
  tokens_ = declaration.parameter("transformer.wte.weight", {options_.vocab, options_.width},
                                  Init::normal(0.02),
                                  /*decay=*/true);
  positions_ = declaration.parameter("transformer.wpe.weight", {options_.context, options_.width},
                                     Init::normal(0.02), /*decay=*/true);
}

at::Tensor GptEmbedding::forward(const at::Tensor& tokens, Pass& pass) {
  if (pass.keeps()) pass.saved = {tokens};
  auto x = at::embedding(tokens_->value, tokens);
  x.add_(positions_->value.narrow(0, 0, tokens.size(1)));
  return drop_.forward(x, pass);
}

at::Tensor GptEmbedding::backward(const at::Tensor& grad_dropped, Pass& pass) {
  const at::Tensor grad_output = drop_.backward(grad_dropped, pass);
  const at::Tensor& tokens = pass.saved[0];
  const auto length = tokens.size(1);
  const bool first = positions_->grad_beta() == 0;
  at::Tensor positions = positions_->grad.narrow(0, 0, length);
  if (!first) {
    positions.add_(at::sum(grad_output, {0}));
  } else {
    at::sum_out(positions, grad_output, {0});
    if (length < options_.context)
      positions_->grad.narrow(0, length, options_.context - length).zero_();
  }

  if (grad_output.is_cpu() &&
      (grad_output.scalar_type() == at::kFloat || grad_output.scalar_type() == at::kDouble)) {
    if (tokens_->grad_beta() == 0) tokens_->grad.zero_();
    const at::Tensor rows = grad_output.contiguous(), ids = tokens.contiguous();
    grad_output.scalar_type() == at::kFloat ? scatter_rows<float>(tokens_->grad, ids, rows)
                                            : scatter_rows<double>(tokens_->grad, ids, rows);
  } else {
    // Sums in fp32 in a fixed order, which an atomic scatter into a bf16 buffer would not.
    tokens_->add_grad(at::embedding_dense_backward(grad_output, tokens, options_.vocab,
                                                   /*padding_idx=*/-1,
                                                   /*scale_grad_by_freq=*/false));
  }
  return {};
}

}  // namespace echelon
