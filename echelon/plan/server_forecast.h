// Forecasts the memory of ranks in a job with parameter servers (memory_forecast.h): ranks that
// compute, ranks that serve, and ranks that do both.
#pragma once

#include <cstdint>

#include "echelon/nn/memory.h"
#include "echelon/plan/options.h"

namespace echelon {

// The larger of two moments: a step, and the transfer of state by the first worker. `computing` is
// what a single process that computes and updates needs; `numel` is the size of the flat buffer in
// elements.
MemoryUse forecast_servers(const PlanOptions& options, int ranks, const MemoryUse& computing,
                           std::int64_t numel);

// For ranks that may use servers for a time (sync.allow_staleness): each of them then also serves.
MemoryUse forecast_async_phases(const PlanOptions& options, int ranks, const MemoryUse& computing,
                                std::int64_t numel);

// For a worker that joins.
MemoryUse forecast_guest(const MemoryUse& computing);

}  // namespace echelon
