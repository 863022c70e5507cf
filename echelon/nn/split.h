// The part of a parameter that one rank holds when several ranks split it: an even cut along one
// dimension. Pure functions take the part out of the whole and reassemble the whole.
//
//   Split half{.kind = Split::Kind::column, .dimension = 1, .parts = 2, .index = 0, .whole = 12};
//   at::Tensor mine = part_of(weight, half);               // [in, 12] -> [in, 6]
//   at::Tensor weight = assemble({mine, theirs}, half);    // and back
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace echelon {

// How the building block that declares a parameter can work with a part of it.
enum class Splits {
  no,            // it needs the whole
  matrix,        // matrix of a product, [in, out]: by columns, heads or rows
  bias,          // bias of a product, [out]: follows its columns or heads; whole if split by rows
  table,         // [vocabulary, width]: by vocabulary
  low_rank_in,   // A of a low-rank adaptation, [in, rank]: follows the rows of its product
  low_rank_out,  // B, [rank, columns]: follows the columns or heads of its product
};

struct Split {
  enum class Kind { none, column, row, heads, vocabulary };

  Kind kind = Kind::none;
  int dimension = 0;  // the one that is cut
  int parts = 1;
  int index = 0;  // index of this part
  // The dimension consists of this many blocks side by side, and each block is cut alike: 3 for
  // q|k|v, so that a part has the queries, keys and values of the same heads.
  int blocks = 1;
  // The block sizes if they differ, each a multiple of `parts`. Empty: all blocks have the same
  // size.
  std::vector<std::int64_t> uneven = {};
  // Size of the dimension in the whole parameter. If it does not divide evenly, zeros pad the end.
  std::int64_t whole = 0;

  bool is_part() const { return kind != Kind::none; }
  // For one block: its size in the whole and in a part, where the part begins within it, and how
  // much of the part is not padding.
  std::int64_t block() const { return whole / blocks; }
  std::int64_t block_part() const { return (block() + parts - 1) / parts; }
  std::int64_t begin() const { return index * block_part(); }
  std::int64_t filled() const;

  // The size of the dimension in a part.
  std::int64_t size() const { return uneven.empty() ? blocks * block_part() : whole / parts; }
};

std::vector<std::int64_t> part_shape(std::vector<std::int64_t> whole_shape, const Split& split);

at::Tensor part_of(const at::Tensor& whole, const Split& split);

// `parts` are in the order of their indices. The index of `split` itself does not matter.
at::Tensor assemble(const std::vector<at::Tensor>& parts, const Split& split);

}  // namespace echelon
