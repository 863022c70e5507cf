#include "echelon/nn/token_type_table.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>

#include "echelon/nn/batch_ids.h"
#include "echelon/nn/scatter_rows.h"

namespace echelon {

void TokenTypeTable::declare(Declaration& declaration, const std::string& name, std::int64_t types,
                             std::int64_t width, double stddev) {
  table_ = declaration.parameter(name + ".weight", {types, width}, Init::normal(stddev),
                                 /*decay=*/true);
}

// Of the rows that this rank has.
at::Tensor TokenTypeTable::types_of(const at::Tensor& rows, const Pass& pass) const {
  const at::Tensor types =
      batch_ids(pass, "token_types", table_->shape[0], "the model's number of token types");
  return types.defined()
             ? own_rows(types, rows, pass)
             : at::zeros(rows.sizes().slice(0, rows.dim() - 1), rows.options().dtype(at::kLong));
}

void TokenTypeTable::add_to(at::Tensor x, const Pass& pass) const {
  x.add_(at::embedding(table_->value, types_of(x, pass)));
}

void TokenTypeTable::backward(const at::Tensor& grad, const Pass& pass) const {
  if (table_->trainable) add_row_gradients(*table_, grad, types_of(grad, pass), pass);
}

}  // namespace echelon
