// What the ranks of a job with parameter servers need of memory (memory_forecast.h): those that
// compute, those that serve, and those that do both.
#pragma once

#include <cstdint>

#include "echelon/nn/memory.h"
#include "echelon/plan/options.h"

namespace echelon {

// At the largest of the moments that count: a step, and when the first worker brings or fetches the
// state. `computing` is what one process that computes and updates by itself needs, `numel` the
// elements of the flat buffer.
MemoryUse forecast_servers(const PlanOptions& options, int ranks, const MemoryUse& computing,
                           std::int64_t numel);

// Of ranks that may use servers for a time (sync.allow_staleness): each then also serves.
MemoryUse forecast_async_phases(const PlanOptions& options, int ranks, const MemoryUse& computing,
                                std::int64_t numel);

// Of a worker that joins.
MemoryUse forecast_guest(const MemoryUse& computing);

}  // namespace echelon
