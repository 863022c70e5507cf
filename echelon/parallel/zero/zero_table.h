// The step table of a sharded model.
#pragma once

#include <cstdint>
#include <vector>

#include "echelon/step/table.h"

namespace echelon {

// When pooled gradients are reduce-scattered to their owners: as soon as no micro-batch is half-way
// through a group, which needs the least memory, or once per step, which sends the fewest bytes.
enum class Scatter { micro_batch, step };

// Adds all-gathers and reduce-scatters to a computation whose parameters, gradients or optimiser
// state are sharded as the shape says. Whole gradients go to their owners after the last
// micro-batch; sliced gradients go when `scatter` says. Sliced values are gathered before their
// layers run and resharded afterwards. The next groups are prefetched while all unsharded groups
// together hold at most `prefetch` bytes (`bytes`: of each group), but always at least one. A group
// that two neighbouring actions need stays unsharded, so the last group of forward is kept for
// backward. Offloaded slices are fetched while the previous group is gathered. Tied gradients are
// summed after all computation, and their groups go to their owners after that: no owner has the
// same slice of them on two pipeline stages.
Table with_shards(const Table& computation, const StepShape& shape,
                  const std::vector<std::int64_t>& bytes, std::int64_t prefetch,
                  Scatter scatter = Scatter::micro_batch);
// The same for the computation of one process.
Table zero(const StepShape& shape, const std::vector<std::int64_t>& bytes, std::int64_t prefetch);

}  // namespace echelon
