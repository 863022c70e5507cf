// A rank's order in a pipeline's schedule as the actions of a step: its layers one by one, and what
// comes and goes at the ends of its chunks. And the way back, from actions that ran to slots.
#pragma once

#include <span>
#include <vector>

#include "echelon/parallel/pipeline/balance.h"
#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/parallel/pipeline/timeline.h"
#include "echelon/step/table.h"
#include "echelon/step/walk.h"

namespace echelon {

// The computation of one rank, without what ends a step. What the next slot waits for begins to
// come before this one runs. `step` says which layers run again before their backward; its `own`
// must be those of the rank.
Table pipeline_table(const PipelineSchedule& schedule, const PipelineShape& shape, int rank,
                     const std::vector<StageLayers>& stages, const StepShape& step);

// By rank, the same for a model whose stages are one layer each: an action that computes is a slot.
std::vector<StageLayers> one_layer_each(const PipelineShape& shape);
std::vector<Table> stage_tables(const PipelineSchedule& schedule, const PipelineShape& shape);

// The slots of a rank's actions: consecutive ones that compute for one stage and micro-batch make
// one slot, a recompute with the backward after it.
std::vector<TimedSlot> slots_of(std::span<const TimedAction> actions,
                                const std::vector<StageLayers>& stages, const PipelineShape& shape);

}  // namespace echelon
