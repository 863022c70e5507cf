// Checks that ranks hold the same model, and makes them hold the same. Every rank makes the same
// calls.
#pragma once

#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/optim/update.h"

namespace echelon {

// The ranks whose parameters differ from rank 0's in any bit, judged by a checksum.
std::vector<int> ranks_that_differ(const Stack& stack, Communicator& ranks);
// The same for the parameters that tensor-parallel ranks hold whole.
std::vector<int> ranks_that_differ_in_whole_parameters(const Stack& stack, Communicator& ranks);
// The same for values that each of these ranks has a copy of.
std::vector<int> ranks_that_differ(const at::Tensor& values, Communicator& ranks);

// Whether the values of two ranks differ in any bit. The values of other ranks are ignored.
bool differ(const at::Tensor& values, int one, int other, Communicator& ranks);

// Ranks that resume from a saved state must all have the same state. Throws InvalidArgument naming
// the first rank whose state differs.
void require_same_state(const Update& update, std::int64_t step, Communicator& ranks);
// The same if each rank holds only a part: compares a digest of the file that each rank read.
void require_same_state(std::uint64_t digest, std::int64_t step, at::Device device,
                        Communicator& ranks);

// Broadcasts rank 0's parameters to all ranks.
void take_first_values(const Stack& stack, Update& update, Communicator& ranks);
// Broadcasts rank 0's buffers (running statistics, which each rank computes from its own samples).
void take_first_buffers(const Stack& stack, Communicator& ranks);

}  // namespace echelon
