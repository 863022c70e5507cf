// Describes the parameter groups of a sharded model to the builder of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/parallel/placement.h"
#include "echelon/parallel/zero/options.h"
#include "echelon/step/table.h"

namespace echelon {

// The smallest size of a parameter group, in elements: zero.group.
std::int64_t smallest_group(const ZeroOptions& options, at::ScalarType type);

// Writes the groups of a stack that is laid out, their users and their placement into a shape.
// Returns the bytes of each group's values.
std::vector<std::int64_t> describe_groups(StepShape& shape, const Stack& stack,
                                          const Placement& placement, at::ScalarType type);

}  // namespace echelon
