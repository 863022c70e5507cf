#include "echelon/nn/batch_ids.h"

#include <ATen/ops/aminmax.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"
#include "echelon/nn/layer.h"

namespace echelon {

at::Tensor batch_ids(const Pass& pass, const char* name, std::int64_t rows, const char* option) {
  const at::Tensor* const found = pass.batch ? pass.batch->find(name) : nullptr;
  if (!found) return {};
  const auto type = found->scalar_type();
  if (found->dim() != 2 || found->size(0) != pass.samples || found->size(1) != pass.tokens ||
      (type != at::kLong && type != at::kInt))
    throw InvalidArgument(fmt::format(
        "the batch's '{}' is {} {}; the model takes [{}, {}] integers, a number for each token",
        name, at::toString(type), found->sizes().vec(), pass.samples, pass.tokens));
  if (found->is_cpu() && found->numel() > 0) {
    const auto [least, most] = at::aminmax(*found);
    for (const auto number : {least.item<std::int64_t>(), most.item<std::int64_t>()})
      if (number < 0 || number >= rows)
        throw InvalidArgument(fmt::format("the batch's '{}' has the number {}; {} is {}", name,
                                          number, option, rows));
  }
  return found->to(at::kLong).contiguous();
}

at::Tensor own_rows(const at::Tensor& ids, const at::Tensor& x, const Pass& pass) {
  return pass.rows_are_split ? ids.reshape({-1}).narrow(0, pass.first_row, x.size(0)) : ids;
}

}  // namespace echelon
