// A rank's order in a pipeline's schedule as the actions of a step: its layers one by one, and what
// comes and goes at the ends of its chunks.
#pragma once

#include <vector>

#include "echelon/parallel/pipeline/balance.h"
#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/step/table.h"

namespace echelon {

// The computation of one rank, without what ends a step. What the next slot waits for begins to
// come before this one runs. `step` says which layers run again before their backward; its `own`
// must be those of the rank.
Table pipeline_table(const PipelineSchedule& schedule, const PipelineShape& shape, int rank,
                     const std::vector<StageLayers>& stages, const StepShape& step);

}  // namespace echelon
