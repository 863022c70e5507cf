#include "echelon/nn/token_table.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/nn/scatter_rows.h"
#include "echelon/nn/summable.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
OwnTokens own_tokens(const at::Tensor& tokens, const Split& vocabulary) {
  if (tokens.is_cpu() && tokens.numel() > 0) {
    const auto [least, most] = at::aminmax(tokens);
    for (const auto token : {least.item<std::int64_t>(), most.item<std::int64_t>()})
      if (token < 0 || token >= vocabulary.whole)
        throw InvalidArgument(
            fmt::format("a token is {}; the vocabulary has {}", token, vocabulary.whole));
  }
  at::Tensor row = tokens.sub(vocabulary.begin());
  const at::Tensor foreign = row.lt(0).logical_or_(row.ge(vocabulary.filled()));
  return {row.masked_fill_(foreign, 0), foreign};
}

void TokenTable::declare(Declaration& declaration, const std::string& name, std::int64_t vocab,
                         std::int64_t width, double stddev) {
  table_ = declaration.parameter(name + ".weight", {vocab, width}, Init::normal(stddev),
                                 /*decay=*/true, /*trainable=*/true, Splits::table);
}

at::Tensor TokenTable::forward(const at::Tensor& tokens) const {
  if (!table_->split.is_part()) return at::embedding(table_->value, tokens);
  const auto [row, foreign] = own_tokens(tokens, table_->split);
  return table_->group->sum(
      at::embedding(table_->value, row).masked_fill_(foreign.unsqueeze(-1), 0));
}

void TokenTable::backward(const at::Tensor& grad, const at::Tensor& tokens) const {
  if (!table_->trainable) return;
  const bool part = table_->split.is_part();
  const at::Tensor all = part ? table_->group->whole(grad) : grad;
  if (scatters(all)) {
    if (table_->grad_beta() == 0) table_->grad.zero_();
    return scatter_rows(table_->grad, tokens, all, part ? table_->split.begin() : 0);
  }
  // Accumulates in fp32 and in a fixed order; an atomic scatter into a bf16 buffer would do
  // neither. Tokens of other ranks go to an extra row, which is dropped.
  const auto size = table_->shape[0];
  at::Tensor row = tokens.reshape({-1});
  if (part) {
    const OwnTokens own = own_tokens(row, table_->split);
    row = own.row.masked_fill(own.foreign, size);
  }
  table_->add_grad(at::embedding_dense_backward(summable(all.reshape({-1, all.size(-1)})), row,
                                                size + (part ? 1 : 0), /*padding_idx=*/-1,
                                                /*scale_grad_by_freq=*/false)
                       .narrow(0, 0, size)
                       .to(all.scalar_type()));
}

}  // namespace echelon
