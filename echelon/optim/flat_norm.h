// The Euclidean norm of a flat tensor (contiguous): a scalar in fp32, for fp64 tensors in fp64.
//
// On CPUs torch adds the squares of a long fp32 tensor in fp32 (0.1 % are lost at 13 million
// elements, more at more), and makes an fp32 copy of a whole bf16 tensor first. Here short blocks
// are added in fp32 and blocks in fp64, whatever the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "echelon/nn/flat_unit.h"

namespace echelon {

at::Tensor flat_norm(const at::Tensor& flat);
at::Tensor norm_of_norms(const std::vector<at::Tensor>& norms);

// Of a slice of the Stack's buffer that begins at `begin`: what this rank counts of it.
at::Tensor counted_norm(const at::Tensor& slice, const std::vector<FlatUnit>& units,
                        std::int64_t begin);

}  // namespace echelon
