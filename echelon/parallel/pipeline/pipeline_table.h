// Translates a rank's order in a pipeline schedule into the actions of a step: its layers one by
// one, and the sends and receives at the ends of its chunks. Also translates executed actions back
// into slots.
#pragma once

#include <span>
#include <vector>

#include "echelon/parallel/pipeline/balance.h"
#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/parallel/pipeline/timeline.h"
#include "echelon/step/table.h"
#include "echelon/step/walk.h"

namespace echelon {

// The computation of one rank, without the end of the step (gradient reduction and update).
// Receives for the next slot are posted before the current slot runs. `step` says which layers are
// recomputed before their backward; its `own` must be the rank's layers.
Table pipeline_table(const PipelineSchedule& schedule, const PipelineShape& shape, int rank,
                     const std::vector<StageLayers>& stages, const StepShape& step);

// The same by rank, for a model with one layer per stage: every computing action is one slot.
std::vector<StageLayers> one_layer_each(const PipelineShape& shape);
std::vector<Table> stage_tables(const PipelineSchedule& schedule, const PipelineShape& shape);

// The slots of a rank's actions. Consecutive computing actions of the same stage and micro-batch
// form one slot; a recompute belongs to the backward after it.
std::vector<TimedSlot> slots_of(std::span<const TimedAction> actions,
                                const std::vector<StageLayers>& stages, const PipelineShape& shape);

}  // namespace echelon
