// Simulates how long a pipeline schedule takes for given costs of its stages. It runs the table
// walk (step/walk.h) on a model with one layer per stage.
//
//   const PipelineShape shape{.ranks = 4, .micro_batches = 8};
//   const std::vector<StageCosts> costs(4, {.forward = 1e-3, .input = 1e-3, .weight = 1e-3});
//   const Timeline timeline = simulate(make_schedule("1f1b", shape), shape, costs);
//   timeline.end();     // 0.033
//   timeline.bubble();  // 0.375
#pragma once

#include <vector>

#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/parallel/pipeline/timeline.h"

namespace echelon {

// Seconds per micro-batch. A backward in one piece costs input + weight.
struct StageCosts {
  double forward = 0, input = 0, weight = 0;
};

// Every slot begins as soon as its rank is free and its input has arrived. `costs` is by stage.
// `transfer` is the time that an activation or its gradient takes between stages s and s + 1, given
// per s or as one value for all. Transfers overlap with computation. A rank sends one forward and
// one backward message at a time; further ones queue. Nothing is sent within a rank, so with one
// rank transfers cost nothing.
//
// Throws what `validate` throws, and InvalidArgument if a number is missing, negative or not
// finite.
Timeline simulate(const PipelineSchedule& schedule, const PipelineShape& shape,
                  const std::vector<StageCosts>& costs, const std::vector<double>& transfer);
Timeline simulate(const PipelineSchedule& schedule, const PipelineShape& shape,
                  const std::vector<StageCosts>& costs, double transfer = 0);

}  // namespace echelon
