// Causal self-attention in fp32 on a CPU, forward and backward, without the scores in memory
// (attention.cpp has the algorithm).
//
// A caller cuts [0, units) into ranges and calls the kernel for each, on as many threads as it
// likes: a unit's result has the same bits in any range. A CUDA kernel takes the same arguments and
// a stream in place of the range and the scratch.
#pragma once

#include "echelon/kernels/attention.h"

namespace echelon::kernels::cpu {

inline constexpr std::int64_t attention_widest_head = 256;

// Floats that one call needs at `scratch`; it is fastest where that begins at a cache line.
std::int64_t attention_forward_scratch(const AttentionShape& shape);
std::int64_t attention_backward_scratch(const AttentionShape& shape);

// Units are the query heads of all sequences: unit = sequence * query_heads + head.
void attention_forward(const AttentionForward<float>& arguments, std::int64_t begin,
                       std::int64_t end, float* scratch);

// Units are the key/value heads of all sequences: unit = sequence * kv_heads + head. A unit has
// the gradients of its query heads too; those of its keys and values are summed in their order.
void attention_backward(const AttentionBackward<float>& arguments, std::int64_t begin,
                        std::int64_t end, float* scratch);

}  // namespace echelon::kernels::cpu
