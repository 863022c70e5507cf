// Forecasts the memory of a job's ranks from its options alone: nothing is allocated.
//
// Parameters, gradients and optimiser state are exact, including the padding that divides them over
// their owners. The pooled memory of ZeRO-2 and 3 is an upper bound: the table walk (step/walk.h)
// drives the rules of the pool. Activations follow the formula of docs/recompute.md for the model's
// family, plus an estimate of what backward holds besides: within a tenth of the measured values
// (docs/memory.md). The walk adds them up; in a pipeline it assumes the largest possible number of
// messages under way. With parameter servers, the forecast is for a rank that both computes and
// serves, or for the larger of the two roles (server_forecast.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/nn/memory.h"
#include "echelon/parallel/placement.h"
#include "echelon/plan/options.h"

namespace echelon {

class Stack;

struct MemoryForecast {
  MemoryUse tensors;       // of one rank
  std::uint64_t host = 0;  // the part in host memory if the model is on a GPU
  std::uint64_t on_device() const { return tensors.total() - host; }
  std::uint64_t disk = 0;  // of one rank
  // What must fit in one piece: the values and gradients of the largest group of layers.
  std::string largest_group;
  std::uint64_t largest_group_bytes = 0;
};

// The memory that a rank actually used.
struct RankMemory {
  MemoryUse tensors;          // at the peak
  std::uint64_t start, peak;  // of the process: before the model, and at its peak
  int rank = 0;
};

// A rank of the job, or a worker that joins a job with parameter servers (train --join).
enum class Role { rank, guest };

// `ranks` is the number of all ranks, of which `local` are on this host. For a guest it is the
// number of workers that its job started with; 0 means not known before it joins, and the forecast
// is then a lower bound.
MemoryForecast forecast_memory(const PlanOptions& options, int ranks, int local,
                               Role role = Role::rank);

// The part of the forecast that does not depend on the computation: values, gradients, optimiser
// state and what its update needs. Works for any stack that is laid out with this placement.
MemoryForecast forecast_state(const Stack& stack, const TrainOptions& train,
                              const OptimOptions& optim, const ZeroOptions& zero,
                              const Placement& placement);

// zero.scatter=auto in a pipeline, for a rank's layers; the trainer and its forecast share this
// rule. Gradients wait for the end of the step only if they take no more than half of the remaining
// memory, so that activations get at least as much.
struct ScatterRoom {
  std::uint64_t gradients = 0;  // of all layers of the rank
  std::uint64_t left = 0;       // the rank's budget minus its state
  bool once_a_step() const { return gradients <= left / 2; }
};
ScatterRoom scatter_room(const Stack& stack, const TrainOptions& train, const OptimOptions& optim,
                         const ZeroOptions& zero, const Placement& placement, int local);

// The memory budget of a rank here: train.memory_mib, or its part of the free memory. 0: unknown.
std::uint64_t memory_budget(const TrainOptions& train, int local);

// Throws InvalidArgument if the job cannot fit. The message says what is needed, what is available,
// and which change would help.
void require_memory(const PlanOptions& options, int ranks, int local, Role role = Role::rank);

// The report of `echelon train --dry-run`: a table, whether it fits, and which changes would make
// it fit.
struct ForecastReport {
  std::string text;
  bool fits = false;
};
ForecastReport report_forecast(const PlanOptions& options, int ranks, int local);

// One row of a memory table: "memory      predicted …", or the measured values of each rank.
std::string memory_row(const std::string& label, const MemoryUse& use);
// The label of a forecast row. With several ranks the forecast is for the rank that needs the most.
inline const char* name_of_forecast(int ranks) {
  return ranks > 1 ? "at most, predicted" : "predicted";
}
std::string memory_head();

}  // namespace echelon
