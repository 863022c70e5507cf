// The Euclidean norm of a flat, contiguous tensor: a scalar in fp32, or in fp64 for fp64 tensors.
//
// On CPUs torch sums the squares of a long fp32 tensor in fp32, which loses 0.1 % at 13 million
// elements and more beyond, and first copies a whole bf16 tensor to fp32. This function sums short
// blocks in fp32 and adds the blocks in fp64, in the same way for any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "echelon/nn/flat_unit.h"

namespace echelon {

at::Tensor flat_norm(const at::Tensor& flat);
at::Tensor norm_of_norms(const std::vector<at::Tensor>& norms);

// The norm of the elements that this rank counts, in a slice of the Stack's buffer that begins at
// `begin`.
at::Tensor counted_norm(const at::Tensor& slice, const std::vector<FlatUnit>& units,
                        std::int64_t begin);

}  // namespace echelon
