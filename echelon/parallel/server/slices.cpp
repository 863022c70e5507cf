#include "echelon/parallel/server/slices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "echelon/nn/flat_unit.h"

namespace echelon {

std::vector<OwnedRange> cut_ranges(std::int64_t elements, const std::vector<double>& weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<OwnedRange> ranges;
  double sum = 0;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    const auto exact = static_cast<double>(elements) * sum / all;
    const auto rounded = std::llround(exact / segment_alignment) * segment_alignment;
    const auto end =
        i + 1 == weights.size() ? elements : std::clamp<std::int64_t>(rounded, begin, elements);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

}  // namespace echelon
