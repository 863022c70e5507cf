// The sum of outer products x[n]^T y[n] over the rows n of two matrices, which is the gradient of a
// weight, in fp32 on a CPU, by our own kernel (kernels/cpu/outer_products.h). The same input gives
// the same bits with any number of threads. An element of the result has the same bits however the
// columns of x or y are cut.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

// A destination, which becomes beta * into + result. With beta 0, `into` is not read.
struct Accumulated {
  at::Tensor into;
  double beta = 0;
};

// x is [n, k] and y is [n, m] with n at least 1; both are float, and the elements of a row are
// contiguous. `product` is [k, m] with the same row layout and receives scale * x^T y. `sums`, if
// it has a tensor, is [m] and contiguous and receives the sum of y's rows. Torch's threads share
// the columns of x.
void outer_products(const at::Tensor& x, const at::Tensor& y, double scale, Accumulated product,
                    Accumulated sums = {});

// Whether this kernel is the fastest on this machine.
bool outer_products_pay();

}  // namespace echelon
