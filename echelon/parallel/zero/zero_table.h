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

// Parameters, gradients or optimiser state shared out over ranks (ZeRO stages 1, 2, 3). Stage 1
// gives gradients to their owners after the last micro-batch, 2 and 3 as `scatter` says. Stage 3
// brings a group together before its layers run and lets it go after; the next ones already come,
// as long as all that are there hold at most `prefetch` bytes (`bytes`: of each group), but at
// least one. What two neighbouring actions need stays: the last group of forward is there for
// backward. What is kept away is fetched while the group before it is gathered. Tied gradients are
// summed once all computation is done, and what holds them goes to its owners after that: no owner
// has the same slice of them on two stages.
Table with_shards(const Table& computation, const StepShape& shape, int stage,
                  const std::vector<std::int64_t>& bytes, std::int64_t prefetch,
                  Scatter scatter = Scatter::micro_batch);
// Over one process's order.
Table zero(const StepShape& shape, int stage, const std::vector<std::int64_t>& bytes,
           std::int64_t prefetch);

}  // namespace echelon
