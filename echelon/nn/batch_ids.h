// A named tensor of a batch that numbers rows of a table, [samples, tokens]: "positions",
// "token_types".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace echelon {

struct Pass;

// The whole tensor, int64 and contiguous; undefined if the batch has none. Throws InvalidArgument
// if it has another size or type, or a number that is not below `rows`, which `option` says. On a
// GPU that check would have to wait for the device.
at::Tensor batch_ids(const Pass& pass, const char* name, std::int64_t rows, const char* option);

// The part of [samples, tokens] that belongs to the rows of this rank.
at::Tensor own_rows(const at::Tensor& ids, const at::Tensor& x, const Pass& pass);

}  // namespace echelon
