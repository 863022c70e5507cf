// Rows as an operator of torch that adds them up should get them: on a CPU some add bf16 and fp16
// in their own type, where a sum of ones ends at 256.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

inline at::Tensor summable(const at::Tensor& rows) {
  return rows.is_cpu() && at::isReducedFloatingType(rows.scalar_type()) ? rows.to(at::kFloat)
                                                                        : rows;
}

}  // namespace echelon
