// The table of a step on ranks that share a model out.
#pragma once

#include <cstdint>
#include <vector>

#include "echelon/step/table.h"

namespace echelon {

// When gradients go to their owners where groups have memory for them only while it is lent: as
// soon as no micro-batch is half-way through a group, which needs the least memory; or once a step,
// which sends the least.
enum class Scatter { micro_batch, step };

// Parameters, gradients or optimiser state in slices over ranks, as the shape says. Gradients that
// are whole go to their owners after the last micro-batch, those in slices as `scatter` says.
// Sliced values are gathered before their layers run and released after; the next groups are
// gathered ahead, as long as all that are there hold at most `prefetch` bytes (`bytes`: of each
// group), but at least one. What two neighbouring actions need stays: the last group of forward is
// there for backward. Offloaded slices are fetched while the group before is gathered. Tied
// gradients are summed once all computation is done, and what holds them goes to its owners after
// that: no owner has the same slice of them on two pipeline stages.
Table with_shards(const Table& computation, const StepShape& shape,
                  const std::vector<std::int64_t>& bytes, std::int64_t prefetch,
                  Scatter scatter = Scatter::micro_batch);
// Over one process's order.
Table zero(const StepShape& shape, const std::vector<std::int64_t>& bytes, std::int64_t prefetch);

}  // namespace echelon
