// Twelve columns of x times two registers of columns of y at a time: with AVX-512 that is 24 sums
// in registers, to which a row adds 24 products and for which it is loaded 14 times, of the two
// loads and two halves of a product that a cycle has on a Zen 4. The rows come in blocks, so that
// what a tile reads of them is still in the first cache for x and in the second for y when the next
// tile wants it; after a block the sums go to memory.
//
// Tiles at the right and lower edge are filled up with columns of zeros.
#include "echelon/nn/outer_products.h"

#include <algorithm>
#include <cstring>

#include "echelon/nn/lanes.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

using Size = std::int64_t;

constexpr Size block_rows = 128;
constexpr Size panel = 12;  // columns of x that a thread takes at once

template <class L>
struct Tile {
  // 32 registers with AVX-512, elsewhere 16.
  static constexpr int rows = L::width == 16 ? 12 : 6, registers = 2;
  static constexpr int columns = registers * L::width;
};

#define EACH_ROW _Pragma("GCC unroll 12") for (int row = 0; row < Tile<L>::rows; ++row)
#define EACH_REGISTER _Pragma("GCC unroll 2") for (int i = 0; i < Tile<L>::registers; ++i)

struct Matrix {
  const float* data;
  Size stride;  // of a row

  Matrix from(Size row, Size column) const { return {data + row * stride + column, stride}; }
};

// What is added to, of a tile or of all of it.
struct Target {
  float* product;
  Size stride;
  bool add;     // false: what is there is not read
  float* sums;  // of y's rows; null: not wanted
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
ECHELON_INLINE void add_tile(Matrix x, Matrix y, Size rows, float scale, const Target& to) {
  constexpr int width = L::width;
  Floats<L> products[Tile<L>::rows][Tile<L>::registers] = {}, sums[Tile<L>::registers] = {};
  // After the loop it is wanted at once.
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

// A tile of which so many rows and columns are there: in a place of its own, by the same
// operations, or an element's bits would depend on where it lies.
template <class L>
ECHELON_INLINE void add_edge(Matrix x, Matrix y, Size rows, float scale, const Target& to,
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

// The first `columns` of so many rows, and zeros up to `padded` of them.
ECHELON_INLINE Matrix filled_up(Matrix from, Size rows, Size columns, Size padded, float* to) {
  for (Size n = 0; n < rows; ++n) {
    const float* const row = from.data + n * from.stride;
    std::fill(std::copy(row, row + columns, to + n * padded), to + (n + 1) * padded, 0.0f);
  }
  return {to, padded};
}

// Columns of x, and all of y.
struct Work {
  Matrix x, y;
  Size rows, x_columns, y_columns;
  float scale;
  Target to;
};

template <class L>
ECHELON_INLINE void kernel(const Work& a) {
  using T = Tile<L>;
  static_assert(panel % T::rows == 0, "the threads' tiles are those of one thread");
  alignas(64) float x_edge[block_rows * T::rows], y_edge[block_rows * T::columns];
  const Size y_whole = a.y_columns / T::columns * T::columns, y_rest = a.y_columns - y_whole;
  Target to = a.to;
  for (Size first = 0; first < a.rows; first += block_rows, to.add = to.add_sums = true) {
    const Size rows = std::min(block_rows, a.rows - first);
    const Matrix y = a.y.from(first, 0);
    const Matrix y_last = filled_up(y.from(0, y_whole), rows, y_rest, T::columns, y_edge);
    for (Size i = 0; i < a.x_columns; i += T::rows) {
      const Size there = std::min<Size>(T::rows, a.x_columns - i);
      Matrix x = a.x.from(first, i);
      if (there < T::rows) x = filled_up(x, rows, there, T::rows, x_edge);
      Target row = to.from(i, 0);
      if (i > 0) row.sums = nullptr;
      for (Size j = 0; j < y_whole; j += T::columns) {
        const Matrix columns = y.from(0, j);
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

void outer_products(const at::Tensor& x, const at::Tensor& y, double scale, Accumulated product,
                    Accumulated sums) {
  for (const auto& [tensor, beta] : {product, sums})
    if (beta != 0 && beta != 1) tensor.mul_(beta);
  const Size columns = x.size(1), stride = product.into.stride(0);
  const float* const x_data = x.const_data_ptr<float>();
  const float* const y_data = y.const_data_ptr<float>();
  float* const into = product.into.data_ptr<float>();
  float* const sums_into = sums.into.defined() ? sums.into.data_ptr<float>() : nullptr;
  // Less than this many products is not worth a thread.
  const Size work = std::max<Size>(1, x.size(0) * y.size(1) * panel);
  const Size grain = std::max<Size>(1, (Size{1} << 20) / work);
  parallel_over((columns + panel - 1) / panel, grain, [&](Size begin, Size end) {
    const Size from = begin * panel, to = std::min(end * panel, columns);
    run({.x = {x_data + from, x.stride(0)},
         .y = {y_data, y.stride(0)},
         .rows = x.size(0),
         .x_columns = to - from,
         .y_columns = y.size(1),
         .scale = static_cast<float>(scale),
         .to = {into + from * stride, stride, product.beta != 0, from == 0 ? sums_into : nullptr,
                sums.beta != 0}});
  });
}

bool outer_products_pay() {
#ifdef ECHELON_HAS_CLONES
  return !__builtin_cpu_is("intel") && __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

}  // namespace echelon
