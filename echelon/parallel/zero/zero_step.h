// What a step must know of a model that ranks share out, and of how finely.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/parallel/placement.h"
#include "echelon/parallel/zero/options.h"
#include "echelon/step/table.h"

namespace echelon {

// The fewest elements that are shared out together: zero.group.
std::int64_t smallest_group(const ZeroOptions& options, at::ScalarType type);

// Writes the groups of a stack that is laid out, who uses them and how they are placed into a
// shape. Gives the bytes of each group's values.
std::vector<std::int64_t> describe_groups(StepShape& shape, const Stack& stack,
                                          const Placement& placement, at::ScalarType type);

}  // namespace echelon
