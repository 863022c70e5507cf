// The sum of outer products x[n]^T y[n] over the rows n of two matrices, which is the gradient of a
// weight, in fp32 on a CPU. Both are read in place: a library's general matrix product first packs
// them for any transposition, and MKL's has no AVX-512 on processors that are not Intel's
// (outer_products.cpp has the algorithm).
//
// A caller splits [0, outer_products_panels(x_columns)) into ranges and calls the kernel for each,
// on any number of threads. An element of the result has the same bits in any range, and in any
// split of the columns of x or y. A CUDA kernel takes a stream instead of the range.
#pragma once

#include "echelon/kernels/outer_products.h"

namespace echelon::kernels::cpu {

inline constexpr std::int64_t outer_products_panel = 12;  // columns of x

constexpr std::int64_t outer_products_panels(std::int64_t x_columns) {
  return (x_columns + outer_products_panel - 1) / outer_products_panel;
}

// Panels [begin, end) of the product; the range of the first panel also computes the column sums.
void outer_products(const OuterProducts<float>& arguments, std::int64_t begin, std::int64_t end);

// Whether it is faster on this machine than the libraries' general product.
bool outer_products_pay();

}  // namespace echelon::kernels::cpu
