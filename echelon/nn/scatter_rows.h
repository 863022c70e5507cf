// The gradient of a table whose rows were looked up: every row sums the gradients of its uses, in
// the order of the uses, so the result is the same bits every time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace echelon {

struct Parameter;
struct Pass;

// Whether scatter_rows takes such gradients: on a CPU in fp32 and fp64.
bool scatters(const at::Tensor& rows);

// table[ids[i] - first] += rows[i]. Skips ids that are not in the table, which may be a part of one
// that ranks split. Threads split the columns.
void scatter_rows(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows,
                  std::int64_t first);

// Adds the gradient of a whole table, given the gradients of this rank's rows and their ids. If
// ranks split rows, it is summed over them.
void add_row_gradients(Parameter& table, const at::Tensor& grad, const at::Tensor& ids,
                       const Pass& pass);

}  // namespace echelon
