// Goes through a pipeline schedule as its ranks would: what the validator and the simulator share.
#pragma once

#include <functional>
#include <optional>

#include "echelon/parallel/pipeline/schedule.h"

namespace echelon {

// The stage that a slot of `stage` waits for: the one before for a forward, the one after for a
// backward or input part, of the same micro-batch. None for a weight part, nor at the model's ends.
std::optional<int> source(const PipelineShape& shape, Slot::Kind kind, int stage);
// The stage that waits for it in turn.
std::optional<int> destination(const PipelineShape& shape, Slot::Kind kind, int stage);

// Calls `run` for every slot, each rank's in its order and each after the one that it waits for.
// Throws InvalidArgument where ranks wait for each other for ever. Nothing may be missing from an
// order, nor be twice in it: `validate` has looked at each rank before.
void walk(const PipelineSchedule& schedule, const PipelineShape& shape,
          const std::function<void(int rank, int index)>& run);

}  // namespace echelon
