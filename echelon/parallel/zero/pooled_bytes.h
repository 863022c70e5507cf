// What ZeroShards takes from its pool for a step, before there is memory for anything.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>

#include "echelon/nn/stack.h"
#include "echelon/parallel/placement.h"
#include "echelon/step/table.h"

namespace echelon {

// Bytes for the groups of a stack that is laid out. An upper bound: a scatter that happens to be
// done early gives its memory back before it must. `type` is the model's; with `fp32_sums` its
// gradients are summed in fp32.
std::uint64_t pooled_bytes(const Table& table, const Stack& stack, const Placement& placement,
                           at::ScalarType type, bool fp32_sums);

}  // namespace echelon
