// Which server owns which range of the flat buffer.
#pragma once

#include <cstdint>
#include <vector>

namespace echelon {

struct OwnedRange {
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t numel() const { return end - begin; }
};

// Cuts the buffer into consecutive ranges in proportion to `weights`. Bounds are multiples of 32
// elements (flat_unit.h), so every range is aligned in every type.
std::vector<OwnedRange> cut_ranges(std::int64_t elements, const std::vector<double>& weights);

}  // namespace echelon
