// What the layers of a model cost on this machine, measured one at a time: no more than one layer
// is ever in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/parallel/pipeline/balance.h"

namespace echelon {

// For a micro-batch, in the type in which the job computes; `state_bytes` are those of a parameter
// with its gradient and optimiser state. The stack's buffers (running statistics) and
// torch's random generators are as they were afterwards. Layers that are alike share a time.
std::vector<LayerCost> measure_layers(Stack& stack, const at::Tensor& input,
                                      const at::Tensor& target, at::Device device,
                                      at::ScalarType type, std::int64_t state_bytes);

}  // namespace echelon
