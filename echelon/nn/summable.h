// Converts rows for torch operators that sum them: on a CPU some of these accumulate bf16 and fp16
// in their own type, where a sum of ones stops at 256.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

inline at::Tensor summable(const at::Tensor& rows) {
  return rows.is_cpu() && at::isReducedFloatingType(rows.scalar_type()) ? rows.to(at::kFloat)
                                                                        : rows;
}

}  // namespace echelon
