// What every backend asks of an operation's arguments before it starts. All throw InvalidArgument.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "echelon/collective/type.h"

namespace echelon {

inline std::size_t elements(const at::Tensor& tensor) { return std::size_t(tensor.numel()); }

// The type of both.
DataType same_type(const at::Tensor& output, const at::Tensor& input);

// "all_gather: the input has 3 elements where 4 are needed".
void expect_elements(const char* operation, const char* what, const at::Tensor& tensor,
                     std::size_t wanted);

// A rank of a communicator of this size.
void expect_rank(const char* operation, const char* what, int rank, int size);

// Fills in even pieces where none are given; they must be one a rank and add up to the whole.
void expect_pieces(const char* operation, std::vector<std::size_t>& counts, const at::Tensor& whole,
                   int ranks);

}  // namespace echelon
