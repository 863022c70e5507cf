// A tile is twelve columns of x times two registers of columns of y. With AVX-512 that is 24 sums
// in registers; each row takes 14 loads and 24 multiply-adds, and a Zen 4 core starts two loads and
// one such multiply-add (two halves) per cycle. Rows are processed in blocks, so that the data of a
// tile is still in the first cache for x and in the second for y when the next tile reads it. After
// a block the sums are written to memory.
//
// Tiles at the right and lower edge are padded with columns of zeros.
#include "echelon/kernels/cpu/outer_products.h"

#include <algorithm>
#include <cstring>

#include "echelon/kernels/cpu/lanes.h"

namespace echelon::kernels::cpu {
namespace {

using Size = std::int64_t;

constexpr Size block_rows = 128;

template <class L>
struct Tile {
  // 32 registers with AVX-512, otherwise 16.
  static constexpr int rows = L::width == 16 ? 12 : 6, registers = 2;
  static constexpr int columns = registers * L::width;
};

#define EACH_ROW _Pragma("GCC unroll 12") for (int row = 0; row < Tile<L>::rows; ++row)
#define EACH_REGISTER _Pragma("GCC unroll 2") for (int i = 0; i < Tile<L>::registers; ++i)

using Rows = Matrix<const float>;

// The destination of a tile or of the whole product.
struct Target {
  float* product;
  Size stride;
  bool add;     // false: overwrite
  float* sums;  // column sums of y; null: not needed
  bool add_sums;

  Target from(Size row, Size column) const {
    return {product + row * stride + column, stride, add, sums ? sums + column : nullptr, add_sums};
  }
};

template <class L>
ECHELON_INLINE void accumulate(float* to, bool add, float scale, Floats<L> sum) {
  store<L>(to, add ? load<L>(to) + scale * sum : scale * sum);
}

template <class L, bool with_sums>
ECHELON_INLINE void add_tile(Rows x, Rows y, Size rows, float scale, const Target& to) {
  constexpr int width = L::width;
  Floats<L> products[Tile<L>::rows][Tile<L>::registers] = {}, sums[Tile<L>::registers] = {};
  // Needed right after the loop.
  EACH_ROW EACH_REGISTER __builtin_prefetch(to.product + row * to.stride + i * width, 1);
#pragma GCC unroll 2
  for (Size n = 0; n < rows; ++n, x.data += x.stride, y.data += y.stride) {
    Floats<L> factor[Tile<L>::registers];
    EACH_REGISTER factor[i] = load<L>(y.data + i * width);
    EACH_ROW EACH_REGISTER products[row][i] += x.data[row] * factor[i];
    if constexpr (with_sums) EACH_REGISTER sums[i] += factor[i];
  }
  EACH_ROW EACH_REGISTER accumulate<L>(to.product + row * to.stride + i * width, to.add, scale,
                                       products[row][i]);
  if constexpr (with_sums)
    EACH_REGISTER accumulate<L>(to.sums + i * width, to.add_sums, 1, sums[i]);
}

// A tile with fewer rows and columns: computed in a temporary tile by the same operations, or the
// bits of an element would depend on its position.
template <class L>
ECHELON_INLINE void add_edge(Rows x, Rows y, Size rows, float scale, const Target& to,
                             Size tile_rows, Size tile_columns) {
  using T = Tile<L>;
  alignas(64) float products[T::rows * T::columns] = {}, sums[T::columns] = {};
  const auto columns = static_cast<std::size_t>(tile_columns) * sizeof(float);
  if (to.add)
    for (Size row = 0; row < tile_rows; ++row)
      std::memcpy(products + row * T::columns, to.product + row * to.stride, columns);
  if (to.sums && to.add_sums) std::memcpy(sums, to.sums, columns);
  add_tile<L, true>(x, y, rows, scale, {products, T::columns, to.add, sums, to.add_sums});
  for (Size row = 0; row < tile_rows; ++row)
    std::memcpy(to.product + row * to.stride, products + row * T::columns, columns);
  if (to.sums) std::memcpy(to.sums, sums, columns);
}

// The first `columns` of each row, padded with zeros to `padded`.
ECHELON_INLINE Rows filled_up(Rows from, Size rows, Size columns, Size padded, float* to) {
  for (Size n = 0; n < rows; ++n) {
    const float* const row = from.data + n * from.stride;
    std::fill(std::copy(row, row + columns, to + n * padded), to + (n + 1) * padded, 0.0f);
  }
  return {to, padded};
}

// Columns of x, and all of y.
struct Work {
  Rows x, y;
  Size rows, x_columns, y_columns;
  float scale;
  Target to;
};

template <class L>
ECHELON_INLINE void kernel(const Work& a) {
  using T = Tile<L>;
  static_assert(outer_products_panel % T::rows == 0, "the threads' tiles are those of one thread");
  alignas(64) float x_edge[block_rows * T::rows], y_edge[block_rows * T::columns];
  const Size y_whole = a.y_columns / T::columns * T::columns, y_rest = a.y_columns - y_whole;
  Target to = a.to;
  for (Size first = 0; first < a.rows; first += block_rows, to.add = to.add_sums = true) {
    const Size rows = std::min(block_rows, a.rows - first);
    const Rows y = a.y.from(first, 0);
    const Rows y_last = filled_up(y.from(0, y_whole), rows, y_rest, T::columns, y_edge);
    for (Size i = 0; i < a.x_columns; i += T::rows) {
      const Size there = std::min<Size>(T::rows, a.x_columns - i);
      Rows x = a.x.from(first, i);
      if (there < T::rows) x = filled_up(x, rows, there, T::rows, x_edge);
      Target row = to.from(i, 0);
      if (i > 0) row.sums = nullptr;
      for (Size j = 0; j < y_whole; j += T::columns) {
        const Rows columns = y.from(0, j);
        if (there < T::rows)
          add_edge<L>(x, columns, rows, a.scale, row.from(0, j), there, T::columns);
        else if (row.sums)
          add_tile<L, true>(x, columns, rows, a.scale, row.from(0, j));
        else
          add_tile<L, false>(x, columns, rows, a.scale, row.from(0, j));
      }
      if (y_rest > 0) add_edge<L>(x, y_last, rows, a.scale, row.from(0, y_whole), there, y_rest);
    }
  }
}
ECHELON_LANES_FUNCTION(run, Work, kernel)

}  // namespace

void outer_products(const OuterProducts<float>& a, Size begin, Size end) {
  const Size from = begin * outer_products_panel,
             to = std::min(end * outer_products_panel, a.x_columns);
  run({.x = a.x.from(0, from),
       .y = a.y,
       .rows = a.rows,
       .x_columns = to - from,
       .y_columns = a.y_columns,
       .scale = a.scale,
       .to = {a.product.data + from * a.product.stride, a.product.stride, a.add,
              from == 0 ? a.sums : nullptr, a.add_sums}});
}

bool outer_products_pay() {
#ifdef ECHELON_HAS_CLONES
  return !__builtin_cpu_is("intel") && __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

}  // namespace echelon::kernels::cpu
