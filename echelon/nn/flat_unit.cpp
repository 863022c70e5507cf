#include "echelon/nn/flat_unit.h"

#include <algorithm>

#include "echelon/nn/parameter.h"

namespace echelon {
namespace {

std::int64_t aligned(std::int64_t n, std::int64_t to = segment_alignment) {
  return (n + to - 1) / to * to;
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
          unit.segments.push_back({p->name, p->shape, unit.numel, p->numel(), decay, p->counted});
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

std::vector<ShardGroup> share_out(std::vector<FlatUnit>& units, int shards, std::int64_t smallest) {
  std::vector<std::vector<FlatUnit*>> members;
  std::int64_t filled = 0;  // of the last
  for (auto& unit : units) {
    if (!unit.trainable) continue;
    if (members.empty() || filled >= smallest) {
      members.emplace_back();
      filled = 0;
    }
    members.back().push_back(&unit);
    filled += unit.numel;
  }
  if (members.size() > 1 && filled < smallest) {
    auto& before = members[members.size() - 2];
    before.insert(before.end(), members.back().begin(), members.back().end());
    members.pop_back();
  }
  std::vector<ShardGroup> groups;
  std::int64_t end = 0;
  for (const auto& of : members) {
    ShardGroup group{.begin = end};
    for (FlatUnit* unit : of) {
      unit->begin = group.begin + group.numel;
      group.numel += unit->numel;
    }
    const auto padded = aligned(group.numel, shards * segment_alignment);
    of.back()->numel += padded - group.numel;
    group.numel = padded;
    end += padded;
    groups.push_back(group);
  }
  return groups;
}

std::vector<FlatRange> counted_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                      std::int64_t end) {
  std::vector<FlatRange> ranges;
  const auto add = [&](std::int64_t from, std::int64_t to) {
    if (from < to) ranges.push_back({from, to - from});
  };
  for (const auto& unit : units)
    for (const auto& segment : unit.segments) {
      const auto from = unit.begin + segment.offset, to = from + segment.numel;
      if (!unit.trainable || segment.counted || to <= begin || from >= end) continue;
      add(begin, from);
      begin = to;
    }
  add(begin, end);
  return ranges;
}

std::vector<UpdateRange> update_ranges(const std::vector<FlatUnit>& units, Grain grain,
                                       std::int64_t longest) {
  std::vector<UpdateRange> ranges;
  const auto add = [&](std::int64_t begin, std::int64_t end, bool decay, int parameter) {
    for (std::int64_t at = begin, size; at < end; at += size) {
      size = std::min(longest, end - at);
      ranges.push_back({at, size, decay, parameter});
    }
  };
  int parameter = 0;
  for (const auto& unit : units) {
    if (!unit.trainable) continue;
    if (grain == Grain::parameter) {
      for (const auto& segment : unit.segments) {
        const auto begin = unit.begin + segment.offset;
        add(begin, begin + segment.numel, segment.decay, parameter++);
      }
      continue;
    }
    const auto without = std::find_if(unit.segments.begin(), unit.segments.end(),
                                      [](const Segment& s) { return !s.decay; });
    const std::int64_t split = without == unit.segments.end() ? unit.numel : without->offset;
    add(unit.begin, unit.begin + split, true, -1);
    add(unit.begin + split, unit.begin + unit.numel, false, -1);
  }
  return ranges;
}

}  // namespace echelon
