// Self-attention in fp32 on a CPU, forward and backward, without the scores in memory
// (attention.cpp has the algorithm). Blocks of keys that no query of a block sees cost nothing:
// those of other documents, padding and the future.
//
// A caller splits [0, units) into ranges and calls the kernel for each, on any number of threads:
// the result of a unit has the same bits in any range. A CUDA kernel takes the same arguments, with
// a stream instead of the range and the scratch.
#pragma once

#include "echelon/kernels/attention.h"

namespace echelon::kernels::cpu {

inline constexpr std::int64_t attention_widest_head = 256;

// Floats that one call needs at `scratch`; fastest if aligned to a cache line.
std::int64_t attention_forward_scratch(const AttentionShape& shape);
std::int64_t attention_backward_scratch(const AttentionShape& shape);

// Units are the query heads of all sequences: unit = sequence * query_heads + head. Returns how
// many pairs of a block of queries and a block of keys it computed.
std::int64_t attention_forward(const AttentionForward<float>& arguments, std::int64_t begin,
                               std::int64_t end, float* scratch);

// Units are the key/value heads of all sequences: unit = sequence * kv_heads + head. A unit also
// computes the gradients of its query heads; those of its keys and values are summed in the order
// of the query heads. Returns the number of pairs too.
std::int64_t attention_backward(const AttentionBackward<float>& arguments, std::int64_t begin,
                                std::int64_t end, float* scratch);

}  // namespace echelon::kernels::cpu
