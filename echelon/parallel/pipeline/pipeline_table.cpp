#include "echelon/parallel/pipeline/pipeline_table.h"

#include <cstddef>

namespace echelon {

Table pipeline_table(const PipelineSchedule& schedule, const PipelineShape& shape, int rank,
                     const std::vector<StageLayers>& stages, const StepShape& step) {
  using Kind = Action::Kind;
  const Order& order = schedule[std::size_t(rank)];
  Table table;
  const auto layers_of = [&](const Slot& slot) {
    return stages[std::size_t(shape.stage(rank, slot.chunk))];
  };
  const auto add = [&](Kind kind, int layer, const Slot& slot) {
    table.push_back({.kind = kind, .layer = layer, .micro_batch = slot.micro_batch});
  };
  const auto begin_to_receive = [&](const Slot& slot) {
    const auto [begin, end] = layers_of(slot);
    if (slot.kind == Slot::Kind::forward) {
      if (begin > 0 && !step.has(begin - 1)) add(Kind::receive, begin, slot);
    } else if (slot.kind != Slot::Kind::weight) {
      if (end < step.layers && !step.has(end)) add(Kind::receive_grad, end - 1, slot);
    }
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Slot& slot = order[i];
    const auto [begin, end] = layers_of(slot);
    if (i == 0) begin_to_receive(slot);
    if (i + 1 < order.size()) begin_to_receive(order[i + 1]);
    switch (slot.kind) {
      case Slot::Kind::forward:
        for (int l = begin; l < end; ++l) add(Kind::forward, l, slot);
        if (end < step.layers && !step.has(end)) add(Kind::send, end - 1, slot);
        break;
      case Slot::Kind::backward:
      case Slot::Kind::input:
        for (int l = end; l-- > begin;) {
          if (step.recomputes(l)) add(Kind::recompute, l, slot);
          add(slot.kind == Slot::Kind::input ? Kind::input : Kind::backward, l, slot);
        }
        if (begin > 0 && !step.has(begin - 1)) add(Kind::send_grad, begin, slot);
        break;
      case Slot::Kind::weight:
        for (int l = end; l-- > begin;) add(Kind::weight, l, slot);
        break;
    }
  }
  return table;
}

}  // namespace echelon
