// The sum of outer products x[n]^T y[n] over the rows n of two matrices, which is the gradient of a
// weight, in fp32 on a CPU, by our own kernel (kernels/cpu/outer_products.h). The same input gives
// the same bits with any number of threads, and an element of the result those it has in any cut of
// the columns of x or y.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

// What becomes beta * into + what is computed; with beta 0 it is not read.
struct Accumulated {
  at::Tensor into;
  double beta = 0;
};

// x is [n, k], y is [n, m], n at least 1, both float with rows whose elements lie side by side.
// `product`, which is [k, m] of that kind, takes scale * x^T y; `sums`, if it has a tensor, [m] and
// contiguous, takes the sum of y's rows. Torch's threads share the columns of x.
void outer_products(const at::Tensor& x, const at::Tensor& y, double scale, Accumulated product,
                    Accumulated sums = {});

// Whether it is the fastest here.
bool outer_products_pay();

}  // namespace echelon
