// What a job's ranks will need of memory, from its options alone: nothing is allocated.
//
// Parameters, gradients and the optimiser's state are exact, with the padding that divides them
// over their owners. So is what is lent to groups in stages 2 and 3: the step's table is walked.
// Activations are those of a GPT by the formula of docs/recompute.md, and an estimate of what its
// backward holds beside them: within a tenth of what was measured (docs/memory.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/nn/memory.h"
#include "echelon/train/options.h"

namespace echelon {

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
};

// `ranks` in all, of which `local` are on this host.
MemoryForecast forecast_memory(const JobOptions& options, int ranks, int local);

// What a rank may take here: train.memory_mib, or its part of what is free. 0: nobody knows.
std::uint64_t memory_budget(const TrainOptions& train, int local);

// Throws InvalidArgument where it cannot fit: says what is needed, what there is, and which change
// would help.
void require_memory(const JobOptions& options, int ranks, int local);

// For `echelon train --dry-run`: a table, whether it fits, and which changes would make it fit.
// Gives whether it does.
bool show_forecast(const JobOptions& options, int ranks, int local);

// "memory      predicted …", or what was measured on each rank.
std::string memory_row(const std::string& label, const MemoryUse& use);
std::string memory_head();

}  // namespace echelon
