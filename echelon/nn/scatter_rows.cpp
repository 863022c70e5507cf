#include "echelon/nn/scatter_rows.h"

#include <ATen/ops/embedding_dense_backward.h>

#include "echelon/nn/layer.h"
#include "echelon/nn/parallel_over.h"
#include "echelon/nn/summable.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

template <class T>
void scatter(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows,
             std::int64_t first) {
  const auto size = table.size(0), width = table.size(1), n = ids.numel();
  T* const out = table.data_ptr<T>();
  const T* const in = rows.const_data_ptr<T>();
  const auto* const id = ids.const_data_ptr<std::int64_t>();
  parallel_over(table[0], 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (id[i] < first || id[i] >= first + size) continue;
      T* const to = out + (id[i] - first) * width;
      const T* const from = in + i * width;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

bool scatters(const at::Tensor& rows) {
  const auto type = rows.scalar_type();
  return rows.is_cpu() && (type == at::kFloat || type == at::kDouble);
}

void scatter_rows(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows,
                  std::int64_t first) {
  const at::Tensor whole = rows.contiguous(), numbers = ids.contiguous();
  rows.scalar_type() == at::kFloat ? scatter<float>(table, numbers, whole, first)
                                   : scatter<double>(table, numbers, whole, first);
}

void add_row_gradients(Parameter& table, const at::Tensor& grad, const at::Tensor& ids,
                       const Pass& pass) {
  if (!pass.rows_are_split && scatters(grad)) {
    if (table.grad_beta() == 0) table.grad.zero_();
    return scatter_rows(table.grad, ids, grad, 0);
  }
  // Accumulates in fp32 and in a fixed order.
  const at::Tensor sum =
      at::embedding_dense_backward(summable(grad.reshape({-1, grad.size(-1)})), ids.reshape({-1}),
                                   table.shape[0], /*padding_idx=*/-1, /*scale_grad_by_freq=*/false)
          .to(grad.scalar_type());
  if (pass.rows_are_split) table.group->sum_over_rows(sum);
  table.add_grad(sum);
}

}  // namespace echelon
