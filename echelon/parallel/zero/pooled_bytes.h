// Forecasts the memory that ZeroShards takes from its pool in a step, before anything is allocated.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>

#include "echelon/nn/stack.h"
#include "echelon/parallel/placement.h"
#include "echelon/step/table.h"

namespace echelon {

// Bytes for the groups of a stack that is laid out. This is an upper bound: a reduce-scatter that
// finishes early returns its memory before it has to. `type` is the model's type; with `fp32_sums`
// gradients are summed in fp32.
std::uint64_t pooled_bytes(const Table& table, const Stack& stack, const Placement& placement,
                           at::ScalarType type, bool fp32_sums);

}  // namespace echelon
