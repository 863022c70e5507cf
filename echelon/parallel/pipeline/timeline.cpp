#include "echelon/parallel/pipeline/timeline.h"

#include <algorithm>
#include <cstddef>

namespace echelon {

double Timeline::end() const {
  double last = 0;
  for (const auto& slots : ranks)
    for (const TimedSlot& one : slots) last = std::max(last, one.end);
  return last;
}

double Timeline::busy(int rank) const {
  double sum = 0;
  for (const TimedSlot& one : ranks.at(std::size_t(rank))) sum += one.end - one.begin;
  return sum;
}

double Timeline::idle(int rank) const {
  const double whole = end();
  return whole > 0 ? 1 - busy(rank) / whole : 0;
}

double Timeline::bubble() const {
  double ideal = 0;
  for (int rank = 0; rank < std::ssize(ranks); ++rank) ideal = std::max(ideal, busy(rank));
  return ideal > 0 ? end() / ideal - 1 : 0;
}

}  // namespace echelon
