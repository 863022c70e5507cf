#include "echelon/parallel/pipeline/pipeline_table.h"

#include <algorithm>
#include <cstddef>
#include <optional>

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
      if (end < step.layers && !step.has(end) && step.goes_back(end - 1))
        add(Kind::receive_grad, end - 1, slot);
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
        for (int l = end; l-- > std::max(begin, step.lowest);) {
          if (step.recomputes(l)) add(Kind::recompute, l, slot);
          add(slot.kind == Slot::Kind::input ? Kind::input : Kind::backward, l, slot);
        }
        if (begin > 0 && !step.has(begin - 1) && step.goes_back(begin - 1))
          add(Kind::send_grad, begin, slot);
        break;
      case Slot::Kind::weight:
        for (int l = end; l-- > std::max(begin, step.lowest);) add(Kind::weight, l, slot);
        break;
    }
  }
  return table;
}

std::vector<StageLayers> one_layer_each(const PipelineShape& shape) {
  std::vector<StageLayers> stages;
  for (int stage = 0; stage < shape.stages(); ++stage) stages.push_back({stage, stage + 1});
  return stages;
}

std::vector<Table> stage_tables(const PipelineSchedule& schedule, const PipelineShape& shape) {
  const auto stages = one_layer_each(shape);
  std::vector<Table> tables;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    StepShape step{.layers = shape.stages(), .micro_batches = shape.micro_batches};
    for (int stage = 0; stage < shape.stages(); ++stage)
      step.own.push_back(shape.rank_of(stage) == rank);
    tables.push_back(pipeline_table(schedule, shape, rank, stages, step));
  }
  return tables;
}

namespace {

// None for a recompute, which belongs to the slot that follows it.
std::optional<Slot::Kind> kind_of(const Action& action) {
  switch (action.kind) {
    case Action::Kind::forward:
      return Slot::Kind::forward;
    case Action::Kind::backward:
      return Slot::Kind::backward;
    case Action::Kind::input:
      return Slot::Kind::input;
    case Action::Kind::weight:
      return Slot::Kind::weight;
    default:
      return {};
  }
}

}  // namespace

std::vector<TimedSlot> slots_of(std::span<const TimedAction> actions,
                                const std::vector<StageLayers>& stages,
                                const PipelineShape& shape) {
  std::vector<TimedSlot> slots;
  std::optional<double> recompute;  // start of a recompute whose backward has not run yet
  for (const auto& [action, begin, end] : actions) {
    if (!computes(action)) continue;
    const double first = recompute.value_or(begin);
    const auto kind = kind_of(action);
    if (!kind) {
      recompute = first;
      continue;
    }
    recompute = {};
    const auto stage = std::ranges::find_if(stages, [layer = action.layer](const StageLayers& s) {
      return layer >= s.begin && layer < s.end;
    });
    const Slot slot{*kind, shape.chunk_of(int(stage - stages.begin())), action.micro_batch};
    if (slots.empty() || slots.back().slot != slot) slots.push_back({slot, first, end});
    slots.back().end = end;
  }
  return slots;
}

}  // namespace echelon
