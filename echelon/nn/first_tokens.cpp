#include "echelon/nn/first_tokens.h"

#include <ATen/ops/zeros.h>

#include "echelon/nn/layer.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

// The samples whose first token is among this rank's rows, and the row of the first of these. A
// sample's first token is `tokens` rows behind the one before.
struct OwnSamples {
  std::int64_t first, count, row;

  OwnSamples(std::int64_t rows, const Pass& pass) {
    const auto samples_before = [&](std::int64_t end) {
      return (end + pass.tokens - 1) / pass.tokens;
    };
    first = samples_before(pass.first_row);
    count = samples_before(pass.first_row + rows) - first;
    row = first * pass.tokens - pass.first_row;
  }
  at::Tensor in(const at::Tensor& rows, const Pass& pass) const {
    return rows.slice(0, row, row + (count - 1) * pass.tokens + 1, pass.tokens);
  }
};

}  // namespace

at::Tensor first_tokens(const at::Tensor& x, const std::shared_ptr<TensorGroup>& group,
                        const Pass& pass) {
  if (!pass.rows_are_split) return x.select(1, 0).contiguous();
  const at::Tensor first = at::zeros({pass.samples, x.size(-1)}, x.options());
  const OwnSamples own(x.size(0), pass);
  if (own.count > 0) first.narrow(0, own.first, own.count).copy_(own.in(x, pass));
  group->all_reduce(first, ReduceOp::sum, "tensor");
  return first;
}

at::Tensor first_tokens_backward(const at::Tensor& grad, const std::shared_ptr<TensorGroup>& group,
                                 const Pass& pass) {
  const auto width = grad.size(-1);
  if (!pass.rows_are_split) {
    const at::Tensor grad_x = at::zeros({pass.samples, pass.tokens, width}, grad.options());
    grad_x.select(1, 0).copy_(grad);
    return grad_x;
  }
  const auto rows = pass.samples * pass.tokens / group->size();
  const at::Tensor grad_x = at::zeros({rows, width}, grad.options());
  const OwnSamples own(rows, pass);
  if (own.count > 0) own.in(grad_x, pass).copy_(grad.narrow(0, own.first, own.count));
  return grad_x;
}

}  // namespace echelon
