#include "echelon/step/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "echelon/base/error.h"

namespace echelon {

std::string to_string(const Action& action) {
  switch (action.kind) {
    case Action::Kind::forward:
      return fmt::format("forward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::backward:
      return fmt::format("backward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::reduce:
      return "reduce";
    case Action::Kind::update:
      return "update";
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

Table data_parallel(int layers, int micro_batches) {
  Table table = one_process(layers, micro_batches);
  table.insert(table.end() - 1, {Action::Kind::reduce});
  return table;
}

void validate(const Table& table, int layers, int micro_batches) {
  enum class Stage { none, forwarded, done };
  std::vector<Stage> stages(
      static_cast<std::size_t>(layers) * static_cast<std::size_t>(micro_batches), Stage::none);
  const auto stage = [&](int layer, int micro_batch) -> Stage& {
    return stages[static_cast<std::size_t>(layer) * static_cast<std::size_t>(micro_batches) +
                  static_cast<std::size_t>(micro_batch)];
  };
  bool reduced = false, updated = false;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Action& a = table[i];
    const auto refuse = [&](const std::string& why) {
      throw InvalidArgument(
          fmt::format("action {} of the step, {}, cannot run: {}", i, to_string(a), why));
    };
    if (updated) refuse("the update has ended the step");
    if (a.kind == Action::Kind::reduce && reduced) refuse("it ran before");
    if (a.kind == Action::Kind::reduce || a.kind == Action::Kind::update) {
      const auto missing =
          std::find_if(stages.begin(), stages.end(), [](Stage s) { return s != Stage::done; });
      if (missing != stages.end()) {
        const auto at = static_cast<int>(missing - stages.begin());
        refuse(fmt::format("backward(layer {}, micro-batch {}) is missing", at / micro_batches,
                           at % micro_batches));
      }
      (a.kind == Action::Kind::reduce ? reduced : updated) = true;
      continue;
    }
    if (a.layer < 0 || a.layer >= layers) refuse(fmt::format("there are {} layers", layers));
    if (a.micro_batch < 0 || a.micro_batch >= micro_batches)
      refuse(fmt::format("there are {} micro-batches", micro_batches));
    Stage& own = stage(a.layer, a.micro_batch);
    if (a.kind == Action::Kind::forward) {
      if (own != Stage::none) refuse("it ran before");
      if (a.layer > 0 && stage(a.layer - 1, a.micro_batch) != Stage::forwarded)
        refuse("the layer below has given it no input");
      own = Stage::forwarded;
    } else {
      if (own != Stage::forwarded)
        refuse(own == Stage::none ? "its forward has not run" : "it ran before");
      if (a.layer + 1 < layers && stage(a.layer + 1, a.micro_batch) != Stage::done) {
        refuse("the layer above has given it no gradient");
      }
      own = Stage::done;
    }
  }
  if (!updated) throw InvalidArgument("the step's table has no update at its end");
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
