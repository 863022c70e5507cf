// Measures what the layers of a model cost on this machine, one layer at a time: at most one layer
// is in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/parallel/pipeline/balance.h"

namespace echelon {

// Costs for one micro-batch, in the job's compute type. `state_bytes` is the size of one parameter
// element with its gradient and optimiser state. Restores the stack's buffers (running statistics)
// and torch's random generators afterwards. Equal layers share one measurement.
std::vector<LayerCost> measure_layers(Stack& stack, const Batch& batch, at::Device device,
                                      at::ScalarType type, std::int64_t state_bytes);

}  // namespace echelon
