// Checks that owners of slices compute what a single owner of everything computes, to the bit.
// ZeRO's update and an update of the whole flat buffer get the same gradients of a bf16 or fp16
// model and the same norm. AdamW and SGD work element by element, so masters and moments must be
// equal.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/job/options.h"
#include "echelon/nn/memory.h"

namespace echelon {

struct MastersCheck {
  double difference = 0;              // the largest of any master or moment
  std::vector<std::uint64_t> groups;  // bytes, in the model's type
  MemoryUse memory;                   // of the owner
};

// Makes `updates` updates of options.model with options.parallel.zero. In fp16 the second one
// overflows on the last rank, and all ranks must skip it.
MastersCheck check_masters(std::shared_ptr<Communicator> ranks, const JobOptions& options,
                           std::int64_t updates);

}  // namespace echelon
