#include "echelon/parallel/pipeline/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "echelon/base/error.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/step/walk.h"

namespace echelon {

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

}  // namespace

Timeline simulate(const PipelineSchedule& schedule, const PipelineShape& shape,
                  const std::vector<StageCosts>& costs, const std::vector<double>& transfer) {
  validate(schedule, shape);
  check(shape, costs, transfer);
  StepCosts step;
  for (const auto& [forward, input, weight] : costs)
    step.layers.push_back({.forward = forward, .input = input, .weight = weight});
  for (const double seconds : transfer) step.boundaries.push_back({.seconds = seconds});
  std::vector<std::vector<TimedAction>> ran(schedule.size());
  walk(stage_tables(schedule, shape), step,
       [&](int rank, std::size_t, const TimedAction& timed, const RankCosts&) {
         ran[std::size_t(rank)].push_back(timed);
       });
  Timeline timeline;
  for (const auto& actions : ran)
    timeline.ranks.push_back(slots_of(actions, one_layer_each(shape), shape));
  return timeline;
}

Timeline simulate(const PipelineSchedule& schedule, const PipelineShape& shape,
                  const std::vector<StageCosts>& costs, double transfer) {
  const auto boundaries = std::size_t(std::max(0, shape.stages() - 1));
  return simulate(schedule, shape, costs, std::vector<double>(boundaries, transfer));
}

}  // namespace echelon
