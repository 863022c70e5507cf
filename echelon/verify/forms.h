// Closed forms of the bytes sent and held by ranks that each have the whole model. Those of meshes
// are in mesh_forms.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/verify/run.h"
#include "echelon/verify/strategies.h"

namespace echelon {

// Bytes that all ranks send to all-reduce n bytes, from the descriptions of the algorithms
// (docs/communication.md).
std::uint64_t all_reduce_bytes(Algorithm algorithm, std::uint64_t n, std::uint64_t ranks,
                               std::uint64_t hosts = 1);

// Bytes that all ranks send for gradients and parameters in a job; `groups` are the bytes of the
// model's groups of layers, with padding.
std::uint64_t replica_bytes(const Strategy& strategy, const std::vector<std::uint64_t>& groups,
                            int world, int hosts);
// The sum over the tags under which the ledger counts them.
std::uint64_t replica_bytes_sent(const std::map<std::string, std::uint64_t>& sent);

// What is wrong with the bytes of a rank's parameters, gradients and optimiser state, or empty.
// `model_bytes` is the size of the trainable parameters of the rank's model, or of its part, which
// `owners` ranks own together; every rank has the `frozen_bytes` of the others.
std::string memory_fault(const Strategy& strategy, const Run& run, std::uint64_t model_bytes,
                         std::uint64_t frozen_bytes, int owners);

}  // namespace echelon
