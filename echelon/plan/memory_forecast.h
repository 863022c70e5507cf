// What a job's ranks will need of memory, from its options alone: nothing is allocated.
//
// Parameters, gradients and the optimiser's state are exact, with the padding that divides them
// over their owners. The pooled memory of ZeRO-2 and 3 is an upper bound: the table walk
// (step/walk.h) feeds the rules of the pool. Activations are those of the model's family by the
// formula of docs/recompute.md, and an estimate of what its backward holds beside them: within a
// tenth of what was measured (docs/memory.md). The walk adds them up; in a pipeline with as many
// messages on their way as there can be at most. With parameter servers it is what the rank needs
// that both works and serves, or the larger of the two (server_forecast.h).
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
  std::uint64_t host = 0;  // of them, in the host's memory where the model is on a GPU
  std::uint64_t on_device() const { return tensors.total() - host; }
  std::uint64_t disk = 0;  // of one rank
  // What has to be in one piece: the largest group of layers, its values and gradients.
  std::string largest_group;
  std::uint64_t largest_group_bytes = 0;
};

// What a rank really took.
struct RankMemory {
  MemoryUse tensors;          // at the peak
  std::uint64_t start, peak;  // of the process: before the model, and at most
  int rank = 0;
};

// A rank of the job, or a worker that joins one with parameter servers (train --join).
enum class Role { rank, guest };

// `ranks` in all, of which `local` are on this host. For a guest, the workers that its job began
// with; 0: not known before it has joined, so what is certain.
MemoryForecast forecast_memory(const PlanOptions& options, int ranks, int local,
                               Role role = Role::rank);

// Of those, what is there whatever is computed: values, gradients, the optimiser's state and what
// its update needs. For any stack that is laid out and placed so.
MemoryForecast forecast_state(const Stack& stack, const TrainOptions& train,
                              const OptimOptions& optim, const ZeroOptions& zero,
                              const Placement& placement);

// zero.scatter=auto in a pipeline, for a rank's layers: the rule of the trainer and of its
// forecast. Gradients that wait for the end of a step leave activations as much as they take.
struct ScatterRoom {
  std::uint64_t gradients = 0;  // of all the rank's layers
  std::uint64_t left = 0;       // of what it may take, beside its state
  bool once_a_step() const { return gradients <= left / 2; }
};
ScatterRoom scatter_room(const Stack& stack, const TrainOptions& train, const OptimOptions& optim,
                         const ZeroOptions& zero, const Placement& placement, int local);

// What a rank may take here: train.memory_mib, or its part of what is free. 0: nobody knows.
std::uint64_t memory_budget(const TrainOptions& train, int local);

// Throws InvalidArgument where it cannot fit: says what is needed, what there is, and which change
// would help.
void require_memory(const PlanOptions& options, int ranks, int local, Role role = Role::rank);

// For `echelon train --dry-run`, in lines: a table, whether it fits, and which changes would make
// it fit.
struct ForecastReport {
  std::string text;
  bool fits = false;
};
ForecastReport report_forecast(const PlanOptions& options, int ranks, int local);

// "memory      predicted …", or what was measured on each rank.
std::string memory_row(const std::string& label, const MemoryUse& use);
// What a row of a forecast is called: of several ranks it is for the one that needs the most.
inline const char* name_of_forecast(int ranks) {
  return ranks > 1 ? "at most, predicted" : "predicted";
}
std::string memory_head();

}  // namespace echelon
