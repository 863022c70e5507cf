#include "echelon/step/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

std::string to_string(const Action& action) {
  switch (action.kind) {
    case Action::Kind::forward:
      return fmt::format("forward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::recompute:
      return fmt::format("recompute(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::backward:
      return fmt::format("backward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::reduce:
      return fmt::format("reduce(bucket {})", action.bucket);
    case Action::Kind::fetch:
      return fmt::format("fetch(group {})", action.group);
    case Action::Kind::gather:
      return fmt::format("gather(group {})", action.group);
    case Action::Kind::use:
      return fmt::format("use(group {})", action.group);
    case Action::Kind::release:
      return fmt::format("release(group {})", action.group);
    case Action::Kind::open:
      return fmt::format("open(group {})", action.group);
    case Action::Kind::scatter:
      return fmt::format("scatter(group {})", action.group);
    case Action::Kind::settle:
      return "settle";
    case Action::Kind::update:
      return "update";
    case Action::Kind::hand_over:
      return "hand over";
  }
  return {};
}

Table one_process(const StepShape& shape) {
  Table table;
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int l = 0; l < shape.layers; ++l) table.push_back({Action::Kind::forward, l, m});
    for (int l = shape.layers; l-- > 0;) {
      if (shape.recomputes(l)) table.push_back({Action::Kind::recompute, l, m});
      table.push_back({Action::Kind::backward, l, m});
    }
  }
  table.push_back({Action::Kind::update});
  return table;
}

Table one_process(int layers, int micro_batches) {
  return one_process(StepShape{layers, micro_batches, {}});
}

Table for_servers(const StepShape& shape) {
  Table table = one_process(shape);
  table.back() = {Action::Kind::hand_over};
  return table;
}

namespace {

// The stretches of a step in which a group is needed, in the order in which they begin.
struct Stretch {
  int group = 0;
  std::size_t first = 0, last = 0;  // actions
  std::size_t from = 0;             // the action before which it begins to come
};

std::vector<Stretch> stretches(const Table& compute, const StepShape& shape) {
  std::vector<Stretch> all;
  std::vector<int> open(std::size_t(shape.groups), -1);  // a stretch that may go on
  for (std::size_t i = 0; i < compute.size(); ++i) {
    const auto& needs = shape.uses[std::size_t(compute[i].layer)];
    if (needs.empty()) continue;  // nothing has to go for it
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

// When each begins to come: with one of those before it, as long as what is there then fits.
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

// Each fetch with the gather before it, the first with its own.
Table with_fetches(const Table& table) {
  Table all;
  int before = -1;  // where the last gather is
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

Table zero(const StepShape& shape, int stage, const std::vector<std::int64_t>& bytes,
           std::int64_t prefetch) {
  Table compute = one_process(shape);
  compute.pop_back();
  auto needed = stretches(compute, shape);
  if (stage == 3) look_ahead(needed, bytes, prefetch);

  // Of each group: the first and the last backward of a micro-batch.
  const auto writes = [&](const Action& a, int group) {
    const auto& needs = shape.uses[std::size_t(a.layer)];
    return a.kind == Action::Kind::backward &&
           std::find(needs.begin(), needs.end(), group) != needs.end();
  };
  const auto another = [&](std::size_t i, int group, int way) {  // in the same micro-batch
    for (auto k = std::ptrdiff_t(i) + way; k >= 0 && k < std::ssize(compute); k += way)
      if (compute[std::size_t(k)].micro_batch != compute[i].micro_batch)
        return false;
      else if (writes(compute[std::size_t(k)], group))
        return true;
    return false;
  };
  Table table;
  std::vector<bool> used(std::size_t(shape.groups), false);
  for (std::size_t i = 0; i < compute.size(); ++i) {
    const Action& action = compute[i];
    const auto add = [&](Action::Kind kind, int group) {
      table.push_back({.kind = kind, .group = group});
    };
    for (const auto& one : needed)
      if (stage == 3 && one.from == i) add(Action::Kind::gather, one.group);
    for (const auto& one : needed)
      if (one.first == i && (stage == 3 || !used[std::size_t(one.group)])) {
        add(Action::Kind::use, one.group);
        used[std::size_t(one.group)] = true;
      }
    const auto& groups = shape.uses[std::size_t(action.layer)];
    for (const int g : groups)
      if (stage >= 2 && writes(action, g) && !another(i, g, -1)) add(Action::Kind::open, g);
    table.push_back(action);
    const bool reduces = stage >= 2 || action.micro_batch == shape.micro_batches - 1;
    for (const int g : groups)
      if (reduces && writes(action, g) && !another(i, g, +1)) add(Action::Kind::scatter, g);
    for (const auto& one : needed)
      if (stage == 3 && one.last == i) add(Action::Kind::release, one.group);
  }
  table.push_back({Action::Kind::settle});
  table.push_back({Action::Kind::update});
  return shape.kept_away ? with_fetches(table) : table;
}

namespace {

// What has run so far, and whether the next action may.
class Validator {
 public:
  explicit Validator(const StepShape& shape)
      : shape_(shape),
        stages_(std::size_t(shape.layers) * std::size_t(shape.micro_batches), Stage::none),
        reduced_(shape.buckets.size(), false),
        groups_(std::size_t(shape.groups)) {
    for (auto& group : groups_) {
      if (!shape.lent_values) group.values = Group::Values::coming;
      group.open = !shape.lent_gradients;
    }
  }

  // Why it cannot run; empty if it can, and then it has.
  std::string run(const Action& action) {
    if (ended_) return "the step has ended";
    switch (action.kind) {
      case Action::Kind::forward:
      case Action::Kind::recompute:
      case Action::Kind::backward:
        return move(action);
      case Action::Kind::reduce:
        return reduce(action.bucket);
      case Action::Kind::fetch:
      case Action::Kind::gather:
      case Action::Kind::use:
      case Action::Kind::release:
      case Action::Kind::open:
      case Action::Kind::scatter:
        return exchange(action);
      case Action::Kind::settle:
        if (std::exchange(settled_, true)) return "it ran before";
        if (const std::string missing = unscattered(); !missing.empty()) return missing;
        return unreduced();
      case Action::Kind::update:
      case Action::Kind::hand_over:
        ended_ = true;
        if (const std::string missing = unfinished(0); !missing.empty()) return missing;
        if ((!reduced_.empty() || !groups_.empty()) && !settled_)
          return "the reductions are not settled";
        return held();
    }
    return {};
  }

  bool ended() const { return ended_; }

 private:
  enum class Stage { none, forwarded, recomputed, done };

  Stage& stage(int layer, int micro_batch) {
    return stages_[std::size_t(layer) * std::size_t(shape_.micro_batches) +
                   std::size_t(micro_batch)];
  }

  std::string move(const Action& a) {
    if (a.layer < 0 || a.layer >= shape_.layers)
      return fmt::format("there are {} layers", shape_.layers);
    if (a.micro_batch < 0 || a.micro_batch >= shape_.micro_batches)
      return fmt::format("there are {} micro-batches", shape_.micro_batches);
    if (const std::string missing = absent(a); !missing.empty()) return missing;
    Stage& own = stage(a.layer, a.micro_batch);
    if (a.kind == Action::Kind::forward) {
      if (own != Stage::none) return "it ran before";
      if (a.layer > 0 && stage(a.layer - 1, a.micro_batch) == Stage::none)
        return "the layer below has given it no input";
      own = Stage::forwarded;
      return {};
    }
    if (own == Stage::none) return "its forward has not run";
    if (a.kind == Action::Kind::recompute) {
      if (!shape_.recomputes(a.layer)) return "its forward kept what its backward needs";
      if (own != Stage::forwarded) return "it ran before";
      own = Stage::recomputed;
      return {};
    }
    if (own == Stage::done) return "it ran before";
    if (shape_.recomputes(a.layer) && own != Stage::recomputed) return "its recompute has not run";
    if (a.layer + 1 < shape_.layers && stage(a.layer + 1, a.micro_batch) != Stage::done)
      return "the layer above has given it no gradient";
    own = Stage::done;
    return {};
  }

  // The first backward of a layer from here on that has not run.
  std::string unfinished(int layer) {
    for (int l = layer; l < shape_.layers; ++l)
      for (int m = 0; m < shape_.micro_batches; ++m)
        if (stage(l, m) != Stage::done)
          return fmt::format("backward(layer {}, micro-batch {}) is missing", l, m);
    return {};
  }

  std::string reduce(int bucket) {
    if (bucket < 0 || std::size_t(bucket) >= reduced_.size())
      return fmt::format("there are {} buckets", reduced_.size());
    if (settled_) return "the reductions are settled";
    if (reduced_[std::size_t(bucket)]) return "it ran before";
    reduced_[std::size_t(bucket)] = true;
    return unfinished(shape_.buckets[std::size_t(bucket)].layer);
  }

  struct Group {
    enum class Values { none, coming, there } values = Values::none;
    bool fetched = false, open = false, written = false, scattered = false;
  };

  // Whether all that a layer computes with is there.
  std::string absent(const Action& a) {
    if (shape_.uses.empty()) return {};
    for (const int g : shape_.uses[std::size_t(a.layer)]) {
      Group& group = groups_[std::size_t(g)];
      if (group.values != Group::Values::there) return fmt::format("group {} is not there", g);
      if (a.kind != Action::Kind::backward) continue;
      if (!group.open) return fmt::format("the gradients of group {} have no memory", g);
      if (group.scattered && !shape_.lent_gradients)
        return fmt::format("the gradients of group {} have gone to their owners", g);
      group.written = true;
    }
    return {};
  }

  std::string exchange(const Action& a) {
    if (a.group < 0 || std::size_t(a.group) >= groups_.size())
      return fmt::format("there are {} groups", groups_.size());
    Group& group = groups_[std::size_t(a.group)];
    using Values = Group::Values;
    switch (a.kind) {
      case Action::Kind::fetch:
        if (!shape_.kept_away) return "its values are not kept away";
        if (std::exchange(group.fetched, true)) return "it was fetched before";
        return {};
      case Action::Kind::gather:
        if (!shape_.lent_values) return "its values are everywhere";
        if (shape_.kept_away && !std::exchange(group.fetched, false)) return "it was not fetched";
        if (std::exchange(group.values, Values::coming) != Values::none)
          return "it is here already";
        return {};
      case Action::Kind::use:
        if (std::exchange(group.values, Values::there) != Values::coming)
          return "it was not gathered";
        return {};
      case Action::Kind::release:
        if (!shape_.lent_values) return "its values are everywhere";
        if (std::exchange(group.values, Values::none) != Values::there) return "it is not there";
        return {};
      case Action::Kind::open:
        if (std::exchange(group.open, true)) return "they have memory already";
        return {};
      default:
        if (!group.written) return "no backward has written them";
        if (!shape_.lent_gradients) {
          if (std::exchange(group.scattered, true)) return "it ran before";
          return {};
        }
        group.open = group.written = false;
        group.scattered = true;
        return {};
    }
  }

  std::string unscattered() const {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (!groups_[g].scattered || (shape_.lent_gradients && groups_[g].written))
        return fmt::format("scatter(group {}) is missing", g);
    return {};
  }

  std::string held() const {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (shape_.lent_values && groups_[g].values != Group::Values::none)
        return fmt::format("release(group {}) is missing", g);
      if (shape_.lent_gradients && groups_[g].open)
        return fmt::format("the gradients of group {} hold memory", g);
    }
    return {};
  }

  std::string unreduced() const {
    for (std::size_t b = 0; b < reduced_.size(); ++b)
      if (!reduced_[b]) return fmt::format("reduce(bucket {}) is missing", b);
    return {};
  }

  const StepShape& shape_;
  std::vector<Stage> stages_;
  std::vector<bool> reduced_;
  std::vector<Group> groups_;
  bool settled_ = false, ended_ = false;
};

}  // namespace

void validate(const Table& table, const StepShape& shape) {
  Validator validator(shape);
  for (std::size_t i = 0; i < table.size(); ++i)
    if (const std::string why = validator.run(table[i]); !why.empty())
      throw InvalidArgument(
          fmt::format("action {} of the step, {}, cannot run: {}", i, to_string(table[i]), why));
  if (!validator.ended()) throw InvalidArgument("the step's table has no update at its end");
}

int peak_activations(const Table& table) {
  const auto recomputed = [&](const Action& action) {
    return std::any_of(table.begin(), table.end(), [&](const Action& other) {
      return other.kind == Action::Kind::recompute && other.layer == action.layer &&
             other.micro_batch == action.micro_batch;
    });
  };
  int alive = 0, peak = 0;
  for (const auto& action : table) {
    if (action.kind == Action::Kind::recompute ||
        (action.kind == Action::Kind::forward && !recomputed(action)))
      peak = std::max(peak, ++alive);
    if (action.kind == Action::Kind::backward) --alive;
  }
  return peak;
}

}  // namespace echelon
