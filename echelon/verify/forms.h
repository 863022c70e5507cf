// Closed forms of what ranks send and hold that each have the whole model. Those of meshes are in
// verify_mesh_forms.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/verify/run.h"
#include "echelon/verify/strategies.h"

namespace echelon {

// Bytes that all ranks send to all-reduce n, from the descriptions of the algorithms (docs:
// communication.md).
std::uint64_t all_reduce_bytes(Algorithm algorithm, std::uint64_t n, std::uint64_t ranks,
                               std::uint64_t hosts = 1);

// What all ranks send for gradients and parameters in a job; `groups` are the bytes of the model's
// groups of layers, with padding.
std::uint64_t replica_bytes(const Strategy& strategy, const std::vector<std::uint64_t>& groups,
                            int world, int hosts);
// The tags under which the ledger has them.
std::uint64_t replica_bytes_sent(const std::map<std::string, std::uint64_t>& sent);

// Why a rank's parameters, gradients and optimiser state are not what they should be, of a model,
// or its part of one, of so many bytes that so many ranks own together. Empty: they are.
std::string memory_fault(const Strategy& strategy, const Run& run, std::uint64_t model_bytes,
                         int owners);

}  // namespace echelon
