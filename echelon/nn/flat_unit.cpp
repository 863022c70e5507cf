#include "echelon/nn/flat_unit.h"

#include <algorithm>

#include "echelon/nn/parameter.h"

namespace echelon {
namespace {

std::int64_t aligned(std::int64_t n) {
  return (n + segment_alignment - 1) / segment_alignment * segment_alignment;
}

}  // namespace

std::vector<FlatUnit> lay_out(const std::vector<const Parameter*>& parameters) {
  int layers = 0;
  for (const auto* p : parameters) layers = std::max(layers, p->layer + 1);

  std::vector<FlatUnit> units;
  std::int64_t end[2] = {0, 0};  // of the frozen and of the trainable buffer
  for (int layer = 0; layer < layers; ++layer) {
    for (const bool trainable : {true, false}) {
      FlatUnit unit{.layer = layer,
                    .trainable = trainable,
                    .begin = end[trainable],
                    .numel = 0,
                    .segments = {}};
      for (const bool decay : {true, false}) {
        for (const auto* p : parameters) {
          if (p->layer != layer || p->trainable != trainable || p->decay != decay) continue;
          unit.segments.push_back({p->name, p->shape, unit.numel, p->numel(), decay});
          unit.numel += aligned(p->numel());
        }
      }
      if (unit.segments.empty()) continue;
      end[trainable] += unit.numel;
      units.push_back(std::move(unit));
    }
  }
  return units;
}

std::vector<DecayRange> decay_ranges(const std::vector<FlatUnit>& units, std::int64_t longest) {
  std::vector<DecayRange> ranges;
  for (const auto& unit : units) {
    if (!unit.trainable) continue;
    const auto without = std::find_if(unit.segments.begin(), unit.segments.end(),
                                      [](const Segment& s) { return !s.decay; });
    const std::int64_t split = without == unit.segments.end() ? unit.numel : without->offset;
    for (const bool decay : {true, false}) {
      const std::int64_t end = decay ? split : unit.numel;
      for (std::int64_t at = decay ? 0 : split, size; at < end; at += size) {
        size = std::min(longest, end - at);
        ranges.push_back({unit.begin + at, size, decay});
      }
    }
  }
  return ranges;
}

}  // namespace echelon
