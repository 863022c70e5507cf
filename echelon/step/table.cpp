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
    case Action::Kind::backward:
      return fmt::format("backward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::reduce:
      return fmt::format("reduce(bucket {})", action.bucket);
    case Action::Kind::settle:
      return "settle";
    case Action::Kind::update:
      return "update";
    case Action::Kind::hand_over:
      return "hand over";
  }
  return {};
}

Table one_process(int layers, int micro_batches) {
  Table table;
  for (int m = 0; m < micro_batches; ++m) {
    for (int l = 0; l < layers; ++l) table.push_back({Action::Kind::forward, l, m});
    for (int l = layers; l-- > 0;) table.push_back({Action::Kind::backward, l, m});
  }
  table.push_back({Action::Kind::update});
  return table;
}

Table for_servers(int layers, int micro_batches) {
  Table table = one_process(layers, micro_batches);
  table.back() = {Action::Kind::hand_over};
  return table;
}

namespace {

// What has run so far, and whether the next action may.
class Validator {
 public:
  explicit Validator(const StepShape& shape)
      : shape_(shape),
        stages_(std::size_t(shape.layers) * std::size_t(shape.micro_batches), Stage::none),
        reduced_(shape.buckets.size(), false) {}

  // Why it cannot run; empty if it can, and then it has.
  std::string run(const Action& action) {
    if (ended_) return "the step has ended";
    switch (action.kind) {
      case Action::Kind::forward:
      case Action::Kind::backward:
        return move(action);
      case Action::Kind::reduce:
        return reduce(action.bucket);
      case Action::Kind::settle:
        if (std::exchange(settled_, true)) return "it ran before";
        return unreduced();
      case Action::Kind::update:
      case Action::Kind::hand_over:
        ended_ = true;
        if (const std::string missing = unfinished(0); !missing.empty()) return missing;
        if (!reduced_.empty() && !settled_) return "the reductions are not settled";
        return {};
    }
    return {};
  }

  bool ended() const { return ended_; }

 private:
  enum class Stage { none, forwarded, done };

  Stage& stage(int layer, int micro_batch) {
    return stages_[std::size_t(layer) * std::size_t(shape_.micro_batches) +
                   std::size_t(micro_batch)];
  }

  std::string move(const Action& a) {
    if (a.layer < 0 || a.layer >= shape_.layers)
      return fmt::format("there are {} layers", shape_.layers);
    if (a.micro_batch < 0 || a.micro_batch >= shape_.micro_batches)
      return fmt::format("there are {} micro-batches", shape_.micro_batches);
    Stage& own = stage(a.layer, a.micro_batch);
    if (a.kind == Action::Kind::forward) {
      if (own != Stage::none) return "it ran before";
      if (a.layer > 0 && stage(a.layer - 1, a.micro_batch) != Stage::forwarded)
        return "the layer below has given it no input";
      own = Stage::forwarded;
      return {};
    }
    if (own != Stage::forwarded)
      return own == Stage::none ? "its forward has not run" : "it ran before";
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

  std::string unreduced() const {
    for (std::size_t b = 0; b < reduced_.size(); ++b)
      if (!reduced_[b]) return fmt::format("reduce(bucket {}) is missing", b);
    return {};
  }

  const StepShape& shape_;
  std::vector<Stage> stages_;
  std::vector<bool> reduced_;
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
  int alive = 0, peak = 0;
  for (const auto& action : table) {
    if (action.kind == Action::Kind::forward) peak = std::max(peak, ++alive);
    if (action.kind == Action::Kind::backward) --alive;
  }
  return peak;
}

}  // namespace echelon
