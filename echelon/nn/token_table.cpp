#include "echelon/nn/token_table.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/nn/parallel_over.h"
#include "echelon/nn/summable.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

// table[tokens[i] - first] += rows[i] in the order of i, so the result is the same bits every time.
// Threads split the columns. Skips tokens that belong to another rank's part of the table.
template <class T>
void scatter_rows(const at::Tensor& table, const at::Tensor& tokens, const at::Tensor& rows,
                  std::int64_t first) {
  const auto size = table.size(0), width = table.size(1), n = tokens.numel();
  T* const out = table.data_ptr<T>();
  const T* const in = rows.const_data_ptr<T>();
  const auto* const token = tokens.const_data_ptr<std::int64_t>();
  parallel_over(table[0], 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (token[i] < first || token[i] >= first + size) continue;
      T* const to = out + (token[i] - first) * width;
      const T* const from = in + i * width;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

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
  const bool part = table_->split.is_part();
  const at::Tensor all = part ? table_->group->whole(grad) : grad;
  const auto type = all.scalar_type();
  if (all.is_cpu() && (type == at::kFloat || type == at::kDouble)) {
    if (table_->grad_beta() == 0) table_->grad.zero_();
    const at::Tensor rows = all.contiguous(), ids = tokens.contiguous();
    const auto first = part ? table_->split.begin() : 0;
    type == at::kFloat ? scatter_rows<float>(table_->grad, ids, rows, first)
                       : scatter_rows<double>(table_->grad, ids, rows, first);
    return;
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
