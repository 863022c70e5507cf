// Walks a table as the executor would and reports the first action that cannot run.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/step/table.h"

namespace echelon {
namespace {

// Tracks what has run so far and whether the next action may run.
class Validator {
 public:
  explicit Validator(const StepShape& shape)
      : shape_(shape),
        stages_(std::size_t(shape.layers) * std::size_t(shape.micro_batches), Stage::none),
        messages_(stages_.size()),
        reduced_(shape.buckets.size(), false),
        groups_(std::size_t(shape.groups)) {
    for (auto& group : groups_) {
      if (!shape.sliced_values) group.values = Group::Values::coming;
      group.open = !shape.sliced_gradients;
    }
  }

  // Runs an action. Returns why it cannot run, or an empty string.
  std::string run(const Action& action) {
    if (ended_) return "the step has ended";
    switch (action.kind) {
      case Action::Kind::forward:
      case Action::Kind::recompute:
      case Action::Kind::backward:
      case Action::Kind::input:
      case Action::Kind::weight:
        return move(action);
      case Action::Kind::receive:
      case Action::Kind::send:
      case Action::Kind::receive_grad:
      case Action::Kind::send_grad:
        return message(action);
      case Action::Kind::reduce:
        return reduce(action.bucket);
      case Action::Kind::fetch:
      case Action::Kind::gather:
      case Action::Kind::wait_unshard:
      case Action::Kind::reshard:
      case Action::Kind::alloc_grads:
      case Action::Kind::scatter:
        return exchange(action);
      case Action::Kind::tie:
        if (!shape_.tied) return "no other rank uses parameters of this one's";
        if (std::exchange(tied_, true)) return "it ran before";
        if (groups_.empty() && !synchronized_) return "the reductions are not synchronized";
        return unfinished(0, shape_.layers - 1);
      case Action::Kind::synchronize:
        if (std::exchange(synchronized_, true)) return "it ran before";
        if (const std::string missing = unscattered(); !missing.empty()) return missing;
        return unreduced();
      case Action::Kind::update:
      case Action::Kind::push:
        ended_ = true;
        if (const std::string missing = unfinished(0, shape_.layers - 1); !missing.empty())
          return missing;
        if (const std::string missing = unsent(); !missing.empty()) return missing;
        if ((!reduced_.empty() || !groups_.empty() || !shape_.own.empty() || shape_.tied) &&
            !synchronized_)
          return "the reductions are not synchronized";
        if (shape_.tied && !tied_) return "the tied gradients are not summed";
        return held();
    }
    return {};
  }

  bool ended() const { return ended_; }

 private:
  // The stages of a layer, in order. `through`: it has computed the gradient of its input.
  enum class Stage { none, forwarded, recomputed, through, done };
  // Which messages of a layer and micro-batch were received or sent.
  struct Messages {
    bool input = false, output = false, output_grad = false, input_grad = false;
  };

  std::size_t at(int layer, int micro_batch) const {
    return std::size_t(layer) * std::size_t(shape_.micro_batches) + std::size_t(micro_batch);
  }

  Stage& stage(int layer, int micro_batch) { return stages_[at(layer, micro_batch)]; }

  std::string misplaced(const Action& a) const {
    if (a.layer < 0 || a.layer >= shape_.layers)
      return fmt::format("there are {} layers", shape_.layers);
    if (a.micro_batch < 0 || a.micro_batch >= shape_.micro_batches)
      return fmt::format("the number of micro-batches is {}", shape_.micro_batches);
    return shape_.has(a.layer) ? "" : "the layer is another rank's";
  }

  std::string message(const Action& a) {
    if (const std::string why = misplaced(a); !why.empty()) return why;
    Messages& seen = messages_[at(a.layer, a.micro_batch)];
    const bool upwards = a.kind == Action::Kind::receive || a.kind == Action::Kind::send_grad;
    const int other = upwards ? a.layer - 1 : a.layer + 1;
    if (other < 0 || other >= shape_.layers) return "there is no layer beyond";
    if (shape_.has(other)) return "the layer beyond is this rank's too";
    const bool of_gradient =
        a.kind == Action::Kind::receive_grad || a.kind == Action::Kind::send_grad;
    if (of_gradient && !shape_.goes_back(std::min(a.layer, other)))
      return "no layer below it trains";
    const Stage own = stage(a.layer, a.micro_batch);
    switch (a.kind) {
      case Action::Kind::receive:
        return std::exchange(seen.input, true) ? "it ran before" : "";
      case Action::Kind::receive_grad:
        return std::exchange(seen.output_grad, true) ? "it ran before" : "";
      case Action::Kind::send:
        if (own == Stage::none) return "its forward has not run";
        return std::exchange(seen.output, true) ? "it ran before" : "";
      default:
        if (own < Stage::through) return "its backward has not run";
        return std::exchange(seen.input_grad, true) ? "it ran before" : "";
    }
  }

  std::string unsent() const {
    for (int l = 0; l < shape_.layers; ++l)
      for (int m = 0; m < shape_.micro_batches && shape_.has(l); ++m) {
        const Messages& seen = messages_[at(l, m)];
        if (l + 1 < shape_.layers && !shape_.has(l + 1) && !seen.output)
          return fmt::format("send(layer {}, micro-batch {}) is missing", l, m);
        if (l > 0 && !shape_.has(l - 1) && shape_.goes_back(l - 1) && !seen.input_grad)
          return fmt::format("send_grad(layer {}, micro-batch {}) is missing", l, m);
      }
    return {};
  }

  std::string move(const Action& a) {
    if (const std::string why = misplaced(a); !why.empty()) return why;
    if (const std::string missing = absent(a); !missing.empty()) return missing;
    Stage& own = stage(a.layer, a.micro_batch);
    if (a.kind == Action::Kind::forward) {
      if (own != Stage::none) return "it ran before";
      if (a.layer > 0 && (shape_.has(a.layer - 1) ? stage(a.layer - 1, a.micro_batch) == Stage::none
                                                  : !messages_[at(a.layer, a.micro_batch)].input))
        return "the layer below has given it no input";
      own = Stage::forwarded;
      return {};
    }
    if (own == Stage::none) return "its forward has not run";
    if (!shape_.goes_back(a.layer)) return "neither the layer nor one below it trains";
    if (a.kind == Action::Kind::recompute) {
      if (!shape_.recomputes(a.layer)) return "its forward kept what its backward needs";
      if (own != Stage::forwarded) return "it ran before";
      own = Stage::recomputed;
      return {};
    }
    if (own == Stage::done) return "it ran before";
    if (a.kind == Action::Kind::weight) {
      if (own != Stage::through) return "its input has not run";
      own = Stage::done;
      return {};
    }
    if (own == Stage::through) return "it ran before";
    if (shape_.recomputes(a.layer) && own != Stage::recomputed) return "its recompute has not run";
    if (a.layer + 1 < shape_.layers &&
        (shape_.has(a.layer + 1) ? stage(a.layer + 1, a.micro_batch) < Stage::through
                                 : !messages_[at(a.layer, a.micro_batch)].output_grad))
      return "the layer above has given it no gradient";
    own = a.kind == Action::Kind::input ? Stage::through : Stage::done;
    return {};
  }

  // The first backward of these layers that has not run, or the first forward of one without.
  std::string unfinished(int layer, int top) {
    for (int l = 0; l < std::min(shape_.lowest, top + 1); ++l)
      for (int m = 0; m < shape_.micro_batches && shape_.has(l); ++m)
        if (stage(l, m) == Stage::none)
          return fmt::format("forward(layer {}, micro-batch {}) is missing", l, m);
    for (int l = std::max(layer, shape_.lowest); l <= top; ++l)
      for (int m = 0; m < shape_.micro_batches && shape_.has(l); ++m)
        if (stage(l, m) != Stage::done)
          return fmt::format("backward(layer {}, micro-batch {}) is missing", l, m);
    return {};
  }

  std::string reduce(int bucket) {
    if (bucket < 0 || std::size_t(bucket) >= reduced_.size())
      return fmt::format("there are {} buckets", reduced_.size());
    if (synchronized_) return "the reductions are synchronized";
    if (reduced_[std::size_t(bucket)]) return "it ran before";
    reduced_[std::size_t(bucket)] = true;
    const Bucket& one = shape_.buckets[std::size_t(bucket)];
    return unfinished(one.layer, one.top);
  }

  struct Group {
    enum class Values { none, coming, there } values = Values::none;
    bool fetched = false, open = false, written = false, scattered = false;
  };

  // What a layer needs and is not there; empty if it can run.
  std::string absent(const Action& a) {
    if (shape_.uses.empty()) return {};
    for (const int g : shape_.uses[std::size_t(a.layer)]) {
      Group& group = groups_[std::size_t(g)];
      if (a.kind != Action::Kind::weight && group.values != Group::Values::there)
        return fmt::format("group {} is not there", g);
      if (!changes_gradients(a)) continue;
      if (!group.open) return fmt::format("the gradients of group {} have no memory", g);
      if (group.scattered && !shape_.sliced_gradients)
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
        if (!shape_.offloaded_values) return "its values are not offloaded";
        if (std::exchange(group.fetched, true)) return "it was fetched before";
        return {};
      case Action::Kind::gather:
        if (!shape_.sliced_values) return "its values are everywhere";
        if (shape_.offloaded_values && !std::exchange(group.fetched, false))
          return "it was not fetched";
        if (std::exchange(group.values, Values::coming) != Values::none)
          return "it is here already";
        return {};
      case Action::Kind::wait_unshard:
        if (std::exchange(group.values, Values::there) != Values::coming)
          return "it was not gathered";
        return {};
      case Action::Kind::reshard:
        if (!shape_.sliced_values) return "its values are everywhere";
        if (std::exchange(group.values, Values::none) != Values::there) return "it is not there";
        return {};
      case Action::Kind::alloc_grads:
        if (std::exchange(group.open, true)) return "they have memory already";
        return {};
      default:
        if (!group.written) return "no backward has written them";
        if (shape_.ties(a.group) && !tied_) return "its tied gradients are not summed";
        if (!shape_.sliced_gradients) {
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
      if (!groups_[g].scattered || (shape_.sliced_gradients && groups_[g].written))
        return fmt::format("scatter(group {}) is missing", g);
    return {};
  }

  std::string held() const {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (shape_.sliced_values && groups_[g].values != Group::Values::none)
        return fmt::format("reshard(group {}) is missing", g);
      if (shape_.sliced_gradients && groups_[g].open)
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
  std::vector<Messages> messages_;
  std::vector<bool> reduced_;
  std::vector<Group> groups_;
  bool tied_ = false, synchronized_ = false, ended_ = false;
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

}  // namespace echelon
