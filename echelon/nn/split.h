// What one rank of several has of a parameter that they split between them: an even cut along one
// dimension. Pure functions take the part out of the whole, and put the whole together again.
//
//   Split half{.kind = Split::Kind::column, .dimension = 1, .parts = 2, .index = 0, .whole = 12};
//   at::Tensor mine = part_of(weight, half);               // [in, 12] -> [in, 6]
//   at::Tensor weight = assemble({mine, theirs}, half);    // and back
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace echelon {

// How a piece that declares a parameter can work with a part of it.
enum class Splits {
  no,      // it needs the whole
  matrix,  // of a product, [in, out]: by columns, heads or rows
  bias,    // of a product, [out]: with its columns or heads; with its rows it stays whole
  table,   // [vocabulary, width]: by vocabulary
};

struct Split {
  enum class Kind { none, column, row, heads, vocabulary };

  Kind kind = Kind::none;
  int dimension = 0;  // the one that is cut
  int parts = 1;
  int index = 0;  // of this part
  // The dimension is so many blocks side by side, each cut alike: 3 for q|k|v, so that a part has
  // the queries, keys and values of the same heads.
  int blocks = 1;
  // The sizes of blocks that are not of one size, each a multiple of `parts`; empty: they are.
  std::vector<std::int64_t> uneven = {};
  // Size of the dimension in the whole. What does not divide is padded with zeros at its end.
  std::int64_t whole = 0;

  bool is_part() const { return kind != Kind::none; }
  // Of a block: its size in the whole and in a part, where the part begins in it, and how much of
  // the part is no padding.
  std::int64_t block() const { return whole / blocks; }
  std::int64_t block_part() const { return (block() + parts - 1) / parts; }
  std::int64_t begin() const { return index * block_part(); }
  std::int64_t filled() const;

  // Of the dimension in a part.
  std::int64_t size() const { return uneven.empty() ? blocks * block_part() : whole / parts; }
};

std::vector<std::int64_t> part_shape(std::vector<std::int64_t> whole_shape, const Split& split);

at::Tensor part_of(const at::Tensor& whole, const Split& split);

// `parts` in the order of their indices; that of `split` itself does not matter.
at::Tensor assemble(const std::vector<at::Tensor>& parts, const Split& split);

}  // namespace echelon
