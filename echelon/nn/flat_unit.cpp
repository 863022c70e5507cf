#include "echelon/nn/flat_unit.h"

#include <algorithm>

#include "echelon/nn/parameter.h"

namespace echelon {
namespace {

std::int64_t aligned(std::int64_t n, std::int64_t to = segment_alignment) {
  return (n + to - 1) / to * to;
}

// The different rules of these parameters, those that decay first.
std::vector<UpdateRule> rules_of(const std::vector<const Parameter*>& parameters) {
  std::vector<UpdateRule> rules;
  for (const bool decay : {true, false})
    for (const auto* p : parameters)
      if (p->update.decay == decay && std::ranges::find(rules, p->update) == rules.end())
        rules.push_back(p->update);
  return rules;
}

}  // namespace

std::vector<FlatUnit> lay_out(const std::vector<const Parameter*>& parameters) {
  int layers = 0;
  for (const auto* p : parameters) layers = std::max(layers, p->layer + 1);

  std::vector<FlatUnit> units;
  std::int64_t end[2] = {0, 0};  // of the frozen and the trainable buffer
  const auto add = [&](int layer, bool trainable, const std::vector<const Parameter*>& of) {
    if (of.empty()) return;
    FlatUnit unit{.layer = layer,
                  .trainable = trainable,
                  .copied = of.front()->copied,
                  .summed_over = of.front()->summed_over,
                  .begin = end[trainable],
                  .segments = {}};
    for (const auto& rule : rules_of(of)) {
      for (const auto* p : of) {
        if (p->update != rule) continue;
        unit.segments.push_back({p->name, p->shape, unit.numel, p->numel(), rule, p->counted});
        unit.numel += aligned(p->numel());
      }
    }
    end[trainable] += unit.numel;
    units.push_back(std::move(unit));
  };
  // One unit for each set of dimensions, in the order in which the parameters name them.
  const auto add_by_sums = [&](int layer, bool trainable, std::vector<const Parameter*> of) {
    while (!of.empty()) {
      const auto others =
          std::stable_partition(of.begin(), of.end(), [&, first = of.front()](const Parameter* p) {
            return !trainable || p->summed_over == first->summed_over;
          });
      add(layer, trainable, {of.begin(), others});
      of.erase(of.begin(), others);
    }
  };
  for (int layer = 0; layer < layers; ++layer) {
    for (const bool trainable : {true, false}) {
      std::vector<const Parameter*> own, copied;
      for (const auto* p : parameters)
        if (p->layer == layer && p->trainable == trainable) (p->copied ? copied : own).push_back(p);
      // Copied units go to the outer end of the layers, where they do not separate units of one
      // group.
      const bool first = units.empty();
      if (!first) add_by_sums(layer, trainable, own);
      for (const auto* p : copied) add(layer, trainable, {p});
      if (first) add_by_sums(layer, trainable, own);
    }
  }
  return units;
}

std::vector<ShardGroup> make_shard_groups(std::vector<FlatUnit>& units, int shards,
                                          std::int64_t smallest) {
  struct Members {
    std::vector<FlatUnit*> units;
    std::int64_t numel = 0;
    bool copied = false;
    Dimensions summed_over;
  };
  std::vector<Members> members;
  // If the last group is too small and nothing can follow it, it joins the previous group.
  const auto close = [&] {
    if (members.size() < 2 || members.back().numel >= smallest) return;
    auto &last = members.back(), &before = members[members.size() - 2];
    if (last.copied || before.copied || last.summed_over != before.summed_over) return;
    before.units.insert(before.units.end(), last.units.begin(), last.units.end());
    before.numel += last.numel;
    members.pop_back();
  };
  for (auto& unit : units) {
    if (!unit.trainable) continue;
    const bool is_apart =
        unit.copied || (!members.empty() && members.back().summed_over != unit.summed_over);
    if (is_apart) close();
    if (members.empty() || members.back().numel >= smallest || is_apart || members.back().copied)
      members.push_back({.units = {}, .copied = unit.copied, .summed_over = unit.summed_over});
    members.back().units.push_back(&unit);
    members.back().numel += unit.numel;
  }
  close();
  std::vector<ShardGroup> groups;
  std::int64_t end = 0;
  for (const auto& of : members) {
    ShardGroup group{.begin = end, .summed_over = of.summed_over};
    for (FlatUnit* unit : of.units) {
      unit->begin = group.begin + group.numel;
      group.numel += unit->numel;
    }
    const auto padded = aligned(group.numel, shards * segment_alignment);
    of.units.back()->numel += padded - group.numel;
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
  const auto add = [&](std::int64_t begin, std::int64_t end, const UpdateRule& update,
                       int parameter) {
    for (std::int64_t at = begin, size; at < end; at += size) {
      size = std::min(longest, end - at);
      ranges.push_back({at, size, update, parameter});
    }
  };
  int parameter = 0;
  for (const auto& unit : units) {
    if (!unit.trainable) continue;
    if (grain == Grain::parameter) {
      for (const auto& segment : unit.segments) {
        const auto begin = unit.begin + segment.offset;
        add(begin, begin + segment.numel, segment.update, parameter++);
      }
      continue;
    }
    for (auto first = unit.segments.begin(); first != unit.segments.end();) {
      const auto next = std::find_if(first, unit.segments.end(), [&](const Segment& segment) {
        return segment.update != first->update;
      });
      const auto end = next == unit.segments.end() ? unit.numel : next->offset;
      add(unit.begin + first->offset, unit.begin + end, first->update, -1);
      first = next;
    }
  }
  return ranges;
}

}  // namespace echelon
