// bfloat16 without torch: the upper half of a float. at::BFloat16 has the same bits.
#pragma once

#include <cstdint>

namespace echelon::kernels {

struct Bf16 {
  std::uint16_t bits;
};

}  // namespace echelon::kernels
