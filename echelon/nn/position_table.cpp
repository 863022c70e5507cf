#include "echelon/nn/position_table.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/sum.h>

#include "echelon/nn/batch_ids.h"
#include "echelon/nn/scatter_rows.h"
#include "echelon/nn/summable.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

// The position of each row that this rank has.
at::Tensor own_positions(const at::Tensor& rows, const Pass& pass) {
  return at::arange(pass.first_row, pass.first_row + rows.size(0), rows.options().dtype(at::kLong))
      .remainder_(pass.tokens);
}

at::Tensor given_positions(const Parameter& table, const Pass& pass) {
  return batch_ids(pass, "positions", table.shape[0], "model.context");
}

}  // namespace

void PositionTable::declare(Declaration& declaration, const std::string& name, std::int64_t context,
                            std::int64_t width, double stddev) {
  table_ = declaration.parameter(name + ".weight", {context, width}, Init::normal(stddev),
                                 /*decay=*/true);
}

void PositionTable::add_to(at::Tensor x, const Pass& pass) const {
  if (const at::Tensor given = given_positions(*table_, pass); given.defined())
    x.add_(at::embedding(table_->value, own_rows(given, x, pass)));
  else if (pass.rows_are_split)
    x.add_(at::embedding(table_->value, own_positions(x, pass)));
  else
    x.add_(table_->value.narrow(0, 0, x.size(1)));
}

void PositionTable::backward(const at::Tensor& grad, const Pass& pass) const {
  if (!table_->trainable) return;
  if (const at::Tensor given = given_positions(*table_, pass); given.defined())
    return add_row_gradients(*table_, grad, own_rows(given, grad, pass), pass);
  const auto length = pass.extent(grad).tokens, context = table_->shape[0];
  const bool first = table_->grad_beta() == 0;
  at::Tensor out = table_->grad.narrow(0, 0, length);
  if (pass.rows_are_split) {
    // Accumulates in a fixed order.
    const at::Tensor sum = at::embedding_dense_backward(summable(grad), own_positions(grad, pass),
                                                        length, /*padding_idx=*/-1,
                                                        /*scale_grad_by_freq=*/false)
                               .to(grad.scalar_type());
    table_->group->sum_over_rows(sum);
    first ? out.copy_(sum) : out.add_(sum);
  } else if (first) {
    at::sum_out(out, grad, {0});
  } else {
    out.add_(at::sum(grad, {0}));
  }
  if (first && length < context) table_->grad.narrow(0, length, context - length).zero_();
}

}  // namespace echelon
