// Argument checks that every backend makes before it starts an operation. All throw
// InvalidArgument.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "echelon/collective/type.h"

namespace echelon {

inline std::size_t elements(const at::Tensor& tensor) { return std::size_t(tensor.numel()); }

// The common type of both tensors.
DataType same_type(const at::Tensor& output, const at::Tensor& input);

// "all_gather: the input has 3 elements where 4 are needed".
void expect_elements(const char* operation, const char* what, const at::Tensor& tensor,
                     std::size_t wanted);

// `rank` must be a rank of a communicator of this size.
void expect_rank(const char* operation, const char* what, int rank, int size);

// Fills in even pieces if none are given. There must be one per rank, and they must add up to the
// whole.
void expect_pieces(const char* operation, std::vector<std::size_t>& counts, const at::Tensor& whole,
                   int ranks);

}  // namespace echelon
