// Ranks that hold the same model: whether they do, and how they come to. Every rank makes the same
// calls.
#pragma once

#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/optim/master_update.h"

namespace echelon {

// Those whose parameters are not rank 0's, to the bit, as far as a checksum tells.
std::vector<int> ranks_that_differ(const Stack& stack, Communicator& ranks);
// The same of the parameters that ranks which split matrices have whole.
std::vector<int> ranks_that_differ_in_whole_parameters(const Stack& stack, Communicator& ranks);
// The same of values that each of these ranks has a copy of.
std::vector<int> ranks_that_differ(const at::Tensor& values, Communicator& ranks);

// Whether two of the ranks have other values, to the bit; what the rest give does not matter.
bool differ(const at::Tensor& values, int one, int other, Communicator& ranks);

// Ranks that go on from a saved state must all have the same: throws InvalidArgument that names the
// first that has not.
void require_same_state(const MasterUpdate& update, std::int64_t step, Communicator& ranks);
// The same where each has a part: by a digest of the file that it was read from.
void require_same_state(std::uint64_t digest, std::int64_t step, at::Device device,
                        Communicator& ranks);

// Rank 0's parameters become everybody's.
void take_first_values(const Stack& stack, MasterUpdate& update, Communicator& ranks);
// And its buffers: running statistics, which each rank gathers from its own samples.
void take_first_buffers(const Stack& stack, Communicator& ranks);

}  // namespace echelon
