#include "echelon/parallel/pipeline/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "echelon/base/error.h"
#include "echelon/parallel/pipeline/walk.h"

namespace echelon {

using Kind = Slot::Kind;

namespace {

void check_seconds(double seconds, const std::string& what) {
  if (!std::isfinite(seconds) || seconds < 0)
    throw InvalidArgument(
        fmt::format("{} takes a time of 0 or more seconds: {} is none", what, seconds));
}

void check(const PipelineShape& shape, const std::vector<StageCosts>& costs,
           const std::vector<double>& transfer) {
  if (std::ssize(costs) != shape.stages())
    throw InvalidArgument(
        fmt::format("a pipeline of {} stages has costs for {}", shape.stages(), costs.size()));
  if (std::ssize(transfer) != shape.stages() - 1)
    throw InvalidArgument(
        fmt::format("a pipeline of {} stages has transfer times for {} boundaries", shape.stages(),
                    transfer.size()));
  for (std::size_t stage = 0; stage < costs.size(); ++stage)
    for (const double seconds : {costs[stage].forward, costs[stage].input, costs[stage].weight})
      check_seconds(seconds, fmt::format("stage {} of the pipeline", stage));
  for (std::size_t stage = 0; stage < transfer.size(); ++stage)
    check_seconds(transfer[stage], fmt::format("a transfer from stage {} to the next", stage));
}

double cost(const StageCosts& costs, Kind kind) {
  switch (kind) {
    case Kind::forward:
      return costs.forward;
    case Kind::backward:
      return costs.input + costs.weight;
    case Kind::input:
      return costs.input;
    case Kind::weight:
      return costs.weight;
  }
  return 0;
}

// Activations go one way and gradients the other.
struct Way {
  std::vector<double> arrival;  // by receiving stage and micro-batch
  std::vector<double> free;     // by sending rank: since when its link can take the next
};

}  // namespace

Timeline simulate(const PipelineSchedule& schedule, const PipelineShape& shape,
                  const std::vector<StageCosts>& costs, const std::vector<double>& transfer) {
  validate(schedule, shape);
  check(shape, costs, transfer);
  const auto index = [&](int stage, int micro_batch) {
    return std::size_t(stage) * std::size_t(shape.micro_batches) + std::size_t(micro_batch);
  };
  std::array<Way, 2> ways;
  for (Way& way : ways) {
    way.arrival.resize(index(shape.stages(), 0));
    way.free.resize(schedule.size());
  }
  Timeline timeline;
  for (const Order& order : schedule) timeline.ranks.emplace_back().reserve(order.size());

  walk(schedule, shape, [&](int rank, int i) {
    const Slot& slot = schedule[std::size_t(rank)][std::size_t(i)];
    const int stage = shape.stage(rank, slot.chunk);
    Way& way = ways[slot.kind == Kind::forward ? 0 : 1];
    auto& ran = timeline.ranks[std::size_t(rank)];
    double begin = ran.empty() ? 0 : ran.back().end;
    if (source(shape, slot.kind, stage))
      begin = std::max(begin, way.arrival[index(stage, slot.micro_batch)]);
    const double end = begin + cost(costs[std::size_t(stage)], slot.kind);
    ran.push_back({slot, begin, end});
    const auto to = destination(shape, slot.kind, stage);
    if (!to) return;
    double& free = way.free[std::size_t(rank)];
    const double seconds = shape.ranks == 1 ? 0 : transfer[std::size_t(std::min(stage, *to))];
    free = std::max(free, end) + seconds;
    way.arrival[index(*to, slot.micro_batch)] = free;
  });
  return timeline;
}

Timeline simulate(const PipelineSchedule& schedule, const PipelineShape& shape,
                  const std::vector<StageCosts>& costs, double transfer) {
  const auto boundaries = std::size_t(std::max(0, shape.stages() - 1));
  return simulate(schedule, shape, costs, std::vector<double>(boundaries, transfer));
}

}  // namespace echelon
