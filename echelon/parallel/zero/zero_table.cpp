// Inserts gathers and scatters into a step's computation.
#include "echelon/parallel/zero/zero_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace echelon {
namespace {

// The intervals of a step in which a group is needed, in the order in which they begin.
struct Stretch {
  int group = 0;
  std::size_t first = 0, last = 0;  // of actions
  std::size_t from = 0;             // the gather starts before this action
};

std::vector<Stretch> stretches(const Table& compute, const StepShape& shape) {
  std::vector<Stretch> all;
  std::vector<int> open(std::size_t(shape.groups), -1);  // an interval that may be extended
  for (std::size_t i = 0; i < compute.size(); ++i) {
    // Messages and weight gradients need no values.
    if (!computes(compute[i]) || compute[i].kind == Action::Kind::weight) continue;
    const auto& needs = shape.uses[std::size_t(compute[i].layer)];
    if (needs.empty()) continue;  // nothing has to be resharded for it
    for (std::size_t g = 0; g < open.size(); ++g)
      if (std::find(needs.begin(), needs.end(), int(g)) == needs.end()) open[g] = -1;
    for (const int g : needs) {
      auto& at = open[std::size_t(g)];
      if (at < 0) {
        at = int(all.size());
        all.push_back({g, i, i, i});
      }
      all[std::size_t(at)].last = i;
    }
  }
  return all;
}

// When each gather starts: as early as all groups that are then unsharded fit into `prefetch`.
void look_ahead(std::vector<Stretch>& all, const std::vector<std::int64_t>& bytes,
                std::int64_t prefetch) {
  for (std::size_t j = 0; j < all.size(); ++j) {
    std::int64_t held = bytes[std::size_t(all[j].group)];
    std::size_t free = 0;  // since when the group may be gathered again
    for (std::size_t k = 0; k < j; ++k)
      if (all[k].group == all[j].group) free = all[k].last + 1;
    for (std::size_t k = j; k-- > 0;) {
      held += bytes[std::size_t(all[k].group)];
      if (all[k].first < free || (held > prefetch && k + 1 < j)) break;
      all[j].from = std::min(all[j].from, all[k].first);
    }
  }
}

// Places each fetch next to the previous gather, and the first next to its own gather.
Table with_fetches(const Table& table) {
  Table all;
  int before = -1;  // position of the last gather
  for (const auto& action : table) {
    if (action.kind == Action::Kind::gather) {
      const Action fetch{.kind = Action::Kind::fetch, .group = action.group};
      all.insert(before < 0 ? all.end() : all.begin() + before + 1, fetch);
      before = int(all.size());
    }
    all.push_back(action);
  }
  return all;
}

}  // namespace

Table with_shards(const Table& computation, const StepShape& shape,
                  const std::vector<std::int64_t>& bytes, std::int64_t prefetch, Scatter scatter) {
  Table compute = computation;
  std::erase_if(compute, [](const Action& a) { return a.kind == Action::Kind::update; });
  auto needed = stretches(compute, shape);
  if (shape.sliced_values) look_ahead(needed, bytes, prefetch);

  const auto changes = [&](const Action& a, int group) {
    const auto& uses = shape.uses[std::size_t(a.layer)];
    return changes_gradients(a) && std::find(uses.begin(), uses.end(), group) != uses.end();
  };
  // By group: gradient changes that remain in the step and in each micro-batch, and which
  // micro-batches have begun.
  struct Left {
    int all = 0;
    std::vector<int> of;
    std::vector<bool> begun;
    bool open = false;

    bool between_micro_batches() const {
      for (std::size_t m = 0; m < of.size(); ++m)
        if (begun[m] && of[m] > 0) return false;
      return true;
    }
  };
  std::vector<Left> left(std::size_t(shape.groups));
  for (std::size_t g = 0; g < left.size(); ++g) {
    left[g].of.resize(std::size_t(shape.micro_batches));
    left[g].begun.resize(std::size_t(shape.micro_batches));
    for (const Action& a : compute)
      if (changes(a, int(g))) {
        ++left[g].all;
        ++left[g].of[std::size_t(a.micro_batch)];
      }
  }
  Table table;
  std::vector<bool> used(std::size_t(shape.groups), false);
  const auto add = [&](Action::Kind kind, int group) {
    table.push_back({.kind = kind, .group = group});
  };
  for (std::size_t i = 0; i < compute.size(); ++i) {
    const Action& action = compute[i];
    for (const auto& one : needed)
      if (shape.sliced_values && one.from == i) add(Action::Kind::gather, one.group);
    for (const auto& one : needed)
      if (one.first == i && (shape.sliced_values || !used[std::size_t(one.group)])) {
        add(Action::Kind::wait_unshard, one.group);
        used[std::size_t(one.group)] = true;
      }
    std::vector<int> changed;
    for (const int g : shape.uses[std::size_t(action.layer)])
      if (changes(action, g)) changed.push_back(g);
    for (const int g : changed)
      if (shape.sliced_gradients && !std::exchange(left[std::size_t(g)].open, true))
        add(Action::Kind::alloc_grads, g);
    table.push_back(action);
    for (const int g : changed) {
      Left& one = left[std::size_t(g)];
      --one.all;
      --one.of[std::size_t(action.micro_batch)];
      one.begun[std::size_t(action.micro_batch)] = true;
      const bool goes = shape.sliced_gradients && scatter == Scatter::micro_batch
                            ? one.between_micro_batches()
                            : one.all == 0;
      if (!goes || shape.ties(g)) continue;
      add(Action::Kind::scatter, g);
      one.open = false;
    }
    for (const auto& one : needed)
      if (shape.sliced_values && one.last == i) add(Action::Kind::reshard, one.group);
  }
  if (shape.tied) table.push_back({Action::Kind::tie});
  for (int g = 0; g < shape.groups; ++g)
    if (shape.ties(g)) add(Action::Kind::scatter, g);
  table.push_back({Action::Kind::synchronize});
  table.push_back({Action::Kind::update});
  return shape.offloaded_values ? with_fetches(table) : table;
}

Table zero(const StepShape& shape, const std::vector<std::int64_t>& bytes, std::int64_t prefetch) {
  return with_shards(one_process(shape), shape, bytes, prefetch);
}

}  // namespace echelon
