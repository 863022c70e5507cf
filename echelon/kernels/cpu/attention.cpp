// One head of one sequence at a time, in blocks of queries and keys (Dao et al., "FlashAttention",
// 2022). Weights are stored with one key per row and one query per lane, so that softmax works on
// sixteen queries at once. All products, two in the forward and five in the backward, have one
// form: six rows times sixteen columns. The left factor is read element by element, along a row or
// down a column; only the right factor is read by lanes. So q and the output's gradient are
// transposed (for k q^T and v grad^T), and everything else is used in its own layout.
//
// Tiles have six rows and sixteen columns: heads and blocks are padded, and results in the padding
// are masked, like the future, or not copied out.
//
// Pairs of blocks of which no query sees a key are skipped. In the others, keys of another document
// get no weight, by a comparison of the tokens' documents; a pair of blocks of one document needs
// none. Padding at the end of a sequence is cut off first.
#include "echelon/kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>

#include "echelon/kernels/cpu/documents.h"
#include "echelon/kernels/cpu/lanes.h"

namespace echelon::kernels::cpu {
namespace {

using Size = std::int64_t;

constexpr Size tile_rows = 6, tile_columns = 16;
// The weights of a block and their factors fit into the first two caches.
constexpr Size query_block = 48, key_block = 96;
static_assert(query_block % tile_columns == 0 && query_block % tile_rows == 0);
// If one query of a block sees the first key of a block of keys, all of its queries do.
static_assert(key_block % query_block == 0);
constexpr Size weights_size = key_block * query_block;

constexpr float infinity = std::numeric_limits<float>::infinity();
// Finite, so that a query which sees nothing yet has no infinite difference.
constexpr float lowest = std::numeric_limits<float>::lowest();

constexpr Size round_up(Size n, Size to) { return (n + to - 1) / to * to; }

// One head of one sequence.
struct Head {
  Size tokens, width;

  Size padded_tokens() const { return round_up(tokens, query_block); }
  Size padded_width() const { return round_up(width, tile_columns); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(width)); }
  float scale_to_log2() const { return scale() * std::numbers::log2e_v<float>; }
  Size keys_size() const { return padded_tokens() * padded_width(); }
  Size queries_size() const { return query_block * padded_width(); }
};

template <class L>
struct Tile {
  static constexpr int registers = tile_columns / L::width;  // of a row
  Floats<L> at[tile_rows][registers];
};

// For every register of a tile, with its row and its index in the row.
#define EACH_OF_TILE                                                \
  _Pragma("GCC unroll 6") for (int row = 0; row < tile_rows; ++row) \
      _Pragma("GCC unroll 4") for (int i = 0; i < Tile<L>::registers; ++i)

template <class L>
ECHELON_INLINE Tile<L> load_tile(const float* from, Size stride) {
  Tile<L> tile;
  EACH_OF_TILE tile.at[row][i] = load<L>(from + row * stride + i * L::width);
  return tile;
}

template <class L>
ECHELON_INLINE void store_tile(float* to, Size stride, const Tile<L>& tile) {
  EACH_OF_TILE store<L>(to + row * stride + i * L::width, tile.at[row][i]);
}

// tile + left * right, where left[row][k] is at row * left_row + k * left_step and the sixteen of
// right[k] are at k * right_step.
template <class L>
ECHELON_INLINE Tile<L> add_product(Tile<L> tile, const float* left, Size left_row, Size left_step,
                                   const float* right, Size right_step, Size length) {
  for (Size k = 0; k < length; ++k, left += left_step, right += right_step) {
    Floats<L> factor[Tile<L>::registers];
#pragma GCC unroll 4
    for (int i = 0; i < Tile<L>::registers; ++i) factor[i] = load<L>(right + i * L::width);
    EACH_OF_TILE tile.at[row][i] += left[row * left_row] * factor[i];
  }
  return tile;
}

// 2^x for x <= 0; 0 below the range of exp2.
template <class L>
ECHELON_INLINE Floats<L> weight(Floats<L> x) {
  return x < -126.0f ? Floats<L>{} : exp2<L>(x);
}

// Sets `value` where a query comes before its key; the tile begins at `query` and `key`.
template <class L>
ECHELON_INLINE void set_future(Tile<L>& tile, Size key, Size query, float value) {
  if (key + tile_rows <= query + 1) return;
  alignas(64) constexpr float numbers[tile_columns] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                       8, 9, 10, 11, 12, 13, 14, 15};
  EACH_OF_TILE {
    const auto earlier = static_cast<float>(key + row - query);
    tile.at[row][i] = load<L>(numbers + i * L::width) < earlier ? all<L>(value) : tile.at[row][i];
  }
}

// Sets `value` where a query and its key are of different documents, given the documents of the
// tile's queries and keys.
template <class L>
ECHELON_INLINE void set_others(Tile<L>& tile, const std::int32_t* keys, const std::int32_t* queries,
                               float value) {
  typename L::Bits query[Tile<L>::registers];
#pragma GCC unroll 4
  for (int i = 0; i < Tile<L>::registers; ++i)
    std::memcpy(&query[i], queries + i * L::width, sizeof query[i]);
  EACH_OF_TILE {
    const auto same = query[i] == static_cast<std::uint32_t>(keys[row]);
    tile.at[row][i] = same ? tile.at[row][i] : all<L>(value);
  }
}

// The keys that a block of queries looks at.
struct View {
  bool causal;
  const Documents* documents;  // null: one document without padding

  Size end(const Head& head, Size query, Size count) const {
    return causal ? query + count : head.tokens;
  }
  Documents::Sees sees(Size query, Size key) const {
    return documents ? documents->sees(query, key, key_block / query_block) : Documents::Sees::all;
  }
  bool pads(Size query) const { return documents && documents->queries()[query] < 0; }
};

// How many keys of a block, which begins at token `key`, the queries of another one see.
struct KeysSeen {
  Size most, before;  // keys before the first query

  KeysSeen(const View& view, const Head& head, Size query, Size key)
      : most(view.causal ? key_block : std::min(key_block, head.tokens - key)),
        before(view.causal ? query - key : key_block) {}
  Size by(Size query, Size count) const { return std::min(most, before + query + count); }
};

// Copies rows of `width` to rows padded with zeros, followed by rows of zeros.
template <class L>
ECHELON_INLINE void pack(float* to, Size padded_rows, TokenRows<const float> rows_in, Size rows,
                         const Head& head) {
  const Size padded = head.padded_width(), whole = head.width / L::width * L::width;
  const float* from = rows_in.data;
  for (Size row = 0; row < rows; ++row, to += padded, from += rows_in.stride) {
    for (Size column = 0; column < whole; column += L::width)
      store<L>(to + column, load<L>(from + column));
    std::fill(std::copy(from + whole, from + head.width, to + whole), to + padded, 0.0f);
  }
  std::fill(to, to + (padded_rows - rows) * padded, 0.0f);
}

template <class L>
ECHELON_INLINE void unpack_row(float* to, const float* from, float factor, const Head& head) {
  Size column = 0;
  for (; column + L::width <= head.width; column += L::width)
    store<L>(to + column, load<L>(from + column) * factor);
  for (; column < head.width; ++column) to[column] = from[column] * factor;
}

// Transposes a square of numbers, one row per register: row and column are the two halves of a
// number's address, and each round rotates the address by one bit.
template <class L, std::size_t... i>
ECHELON_INLINE void turn(Floats<L>* x, std::index_sequence<i...>) {
  constexpr int width = L::width, half = width / 2;
  Floats<L> y[width];
#pragma GCC unroll 4
  for (int round = 1; round < width; round *= 2) {
#pragma GCC unroll 8
    for (int r = 0; r < half; ++r) {
      y[2 * r] = __builtin_shufflevector(x[r], x[r + half], (i % 2 * width + i / 2)...);
      y[2 * r + 1] = __builtin_shufflevector(x[r], x[r + half], (i % 2 * width + i / 2 + half)...);
    }
#pragma GCC unroll 16
    for (int r = 0; r < width; ++r) x[r] = y[r];
  }
}

// A block of packed queries, times a factor: sixteen of them become [padded width][sixteen].
template <class L>
ECHELON_INLINE void transpose(float* to, const float* from, float factor, const Head& head) {
  const Size width = head.padded_width();
  for (Size group = 0; group < query_block; group += tile_columns, to += tile_columns * width)
    for (Size query = 0; query < tile_columns; query += L::width)
      for (Size column = 0; column < width; column += L::width) {
        Floats<L> x[L::width];
#pragma GCC unroll 16
        for (int r = 0; r < L::width; ++r)
          x[r] = load<L>(from + (group + query + r) * width + column) * factor;
        turn<L>(x, std::make_index_sequence<L::width>());
#pragma GCC unroll 16
        for (int r = 0; r < L::width; ++r) store<L>(to + (column + r) * tile_columns + query, x[r]);
      }
}

// x . y, with one sum per lane.
template <class L>
ECHELON_INLINE float dot(const float* x, const float* y, Size length) {
  Floats<L> sums{};
  Size i = 0;
  for (; i + L::width <= length; i += L::width) sums += load<L>(x + i) * load<L>(y + i);
  sums += load<L>(x + i, length - i) * load<L>(y + i, length - i);
  float sum = 0;
  for (int lane = 0; lane < L::width; ++lane) sum += sums[lane];
  return sum;
}

// Rows that begin with one head's first element at one token.
template <class T>
ECHELON_INLINE TokenRows<T> rows_from(TokenRows<T> rows, Size token, Size column = 0) {
  return {rows.data + token * rows.stride + column, rows.stride};
}

struct Forward {
  Head head;
  View view;
  TokenRows<const float> q, k, v;  // at the head's first token, as everything here
  TokenRows<float> out;
  float *lse, *scratch;
  bool packed;  // the scratch still has these keys and values from the previous query head
  Size* pairs;  // of blocks, computed so far
};

Size forward_scratch(const Head& head) {
  return 2 * head.keys_size() + 3 * head.queries_size() + weights_size;
}

// Online softmax: `highest` score and `total` of the weights so far, which shrink by `factor`
// whenever a block has a higher score.
template <class L>
ECHELON_INLINE void forward_kernel(const Forward& a) {
  const Head head = a.head;
  const Size width = head.padded_width();
  float* const keys = a.scratch;
  float* const values = keys + head.keys_size();
  float* const queries = values + head.keys_size();
  float* const turned = queries + head.queries_size();
  float* const sums = turned + head.queries_size();
  float* const weights = sums + head.queries_size();
  alignas(64) float highest[query_block], total[query_block], factor[query_block] = {};
  if (!a.packed) {
    pack<L>(keys, head.padded_tokens(), a.k, head.tokens, head);
    pack<L>(values, head.padded_tokens(), a.v, head.tokens, head);
  }
  for (Size first = 0; first < head.tokens; first += query_block) {
    const Size count = std::min(query_block, head.tokens - first);
    pack<L>(queries, query_block, rows_from(a.q, first), count, head);
    transpose<L>(turned, queries, head.scale_to_log2(), head);
    std::fill(sums, sums + head.queries_size(), 0.0f);
    std::fill(highest, highest + query_block, lowest);
    std::fill(total, total + query_block, 0.0f);
    // Tiles of rows reach beyond those of columns; only the latter are written.
    if (count < query_block) std::fill(weights, weights + weights_size, 0.0f);
    for (Size first_key = 0; first_key < a.view.end(head, first, count); first_key += key_block) {
      const auto sees = a.view.sees(first, first_key);
      if (sees == Documents::Sees::nothing) continue;
      ++*a.pairs;
      const KeysSeen seen(a.view, head, first, first_key);
      for (Size query = 0; query < count; query += tile_columns) {
        const Size end = seen.by(query, tile_columns);
        Floats<L> high[Tile<L>::registers];
        for (int i = 0; i < Tile<L>::registers; ++i)
          high[i] = load<L>(highest + query + i * L::width);
        for (Size key = 0; key < end; key += tile_rows) {
          auto scores = add_product<L>({}, keys + (first_key + key) * width, width, 1,
                                       turned + query * width, tile_columns, width);
          if (a.view.causal) set_future<L>(scores, key, seen.before + query, -infinity);
          if (sees == Documents::Sees::some)
            set_others<L>(scores, a.view.documents->keys() + first_key + key,
                          a.view.documents->queries() + first + query, -infinity);
          EACH_OF_TILE high[i] = high[i] > scores.at[row][i] ? high[i] : scores.at[row][i];
          store_tile<L>(weights + key * query_block + query, query_block, scores);
        }
        for (int i = 0; i < Tile<L>::registers; ++i) {
          const Size lane = query + i * L::width;
          const Floats<L> shrink = weight<L>(load<L>(highest + lane) - high[i]);
          Floats<L> sum = load<L>(total + lane) * shrink;
          for (Size key = 0; key < round_up(end, tile_rows); ++key) {
            float* const at = weights + key * query_block + lane;
            const Floats<L> w = weight<L>(load<L>(at) - high[i]);
            sum += w;
            store<L>(at, w);
          }
          store<L>(highest + lane, high[i]);
          store<L>(total + lane, sum);
          store<L>(factor + lane, shrink);
        }
      }
      for (Size column = 0; column < width; column += tile_columns)
        for (Size query = 0; query < count; query += tile_rows) {
          float* const at = sums + query * width + column;
          auto tile = load_tile<L>(at, width);
          EACH_OF_TILE tile.at[row][i] *= factor[query + row];
          tile =
              add_product<L>(tile, weights + query, 1, query_block,
                             values + first_key * width + column, width, seen.by(query, tile_rows));
          store_tile<L>(at, width, tile);
        }
    }
    for (Size query = 0; query < count; ++query) {
      float* const out = rows_from(a.out, first + query).data;
      if (a.view.pads(first + query)) {
        std::fill(out, out + head.width, 0.0f);
        a.lse[first + query] = 0;
        continue;
      }
      unpack_row<L>(out, sums + query * width, 1 / total[query], head);
      a.lse[first + query] = highest[query] + std::log2(total[query]);
    }
  }
}
ECHELON_LANES_FUNCTION(forward, Forward, forward_kernel)

// One head of keys and values, and the query heads that read it, which are adjacent.
struct Backward {
  Head head;
  View view;
  Size query_heads;
  Size lse_stride;  // from one query head to the next
  TokenRows<const float> grad, q, k, v, out;
  const float* lse;
  TokenRows<float> grad_q, grad_k, grad_v;
  float* scratch;
  Size* pairs;
};

Size backward_scratch(const Head& head) {
  return 4 * head.keys_size() + 5 * head.queries_size() + 2 * weights_size;
}

// For scores s = scale * k q^T with weights w = softmax(s): grad_v = w grad, grad_w = v grad^T,
// grad_s = w * (grad_w - sum(out * grad)), grad_k = scale * grad_s q, grad_q = scale * grad_s^T k.
template <class L>
ECHELON_INLINE void backward_kernel(const Backward& a) {
  const Head head = a.head;
  const Size width = head.padded_width();
  float* const keys = a.scratch;
  float* const values = keys + head.keys_size();
  float* const grad_keys = values + head.keys_size();
  float* const grad_values = grad_keys + head.keys_size();
  float* const queries = grad_values + head.keys_size();
  float* const turned = queries + head.queries_size();
  float* const grads = turned + head.queries_size();
  float* const turned_grads = grads + head.queries_size();
  float* const grad_queries = turned_grads + head.queries_size();
  float* const weights = grad_queries + head.queries_size();
  float* const grad_scores = weights + weights_size;
  alignas(64) float lse[query_block], out_grad[query_block];
  pack<L>(keys, head.padded_tokens(), a.k, head.tokens, head);
  pack<L>(values, head.padded_tokens(), a.v, head.tokens, head);
  std::fill(grad_keys, grad_keys + 2 * head.keys_size(), 0.0f);
  for (Size h = 0; h < a.query_heads; ++h) {
    const Size column_of_head = h * head.width;
    for (Size first = 0; first < head.tokens; first += query_block) {
      const Size count = std::min(query_block, head.tokens - first);
      pack<L>(queries, query_block, rows_from(a.q, first, column_of_head), count, head);
      pack<L>(grads, query_block, rows_from(a.grad, first, column_of_head), count, head);
      transpose<L>(turned, queries, head.scale_to_log2(), head);
      transpose<L>(turned_grads, grads, 1, head);
      std::fill(grad_queries, grad_queries + head.queries_size(), 0.0f);
      std::fill(std::copy_n(a.lse + h * a.lse_stride + first, count, lse), lse + query_block, 0.0f);
      std::fill(out_grad, out_grad + query_block, 0.0f);
      if (count < query_block) std::fill(weights, weights + 2 * weights_size, 0.0f);
      for (Size query = 0; query < count; ++query)
        out_grad[query] = dot<L>(rows_from(a.out, first + query, column_of_head).data,
                                 grads + query * width, head.width);
      for (Size first_key = 0; first_key < a.view.end(head, first, count); first_key += key_block) {
        const auto sees = a.view.sees(first, first_key);
        if (sees == Documents::Sees::nothing) continue;
        ++*a.pairs;
        const KeysSeen seen(a.view, head, first, first_key);
        for (Size query = 0; query < count; query += tile_columns) {
          const Size end = seen.by(query, tile_columns);
          for (Size key = 0; key < end; key += tile_rows) {
            const Size place = key * query_block + query, row_of_keys = (first_key + key) * width;
            auto tile = add_product<L>({}, keys + row_of_keys, width, 1, turned + query * width,
                                       tile_columns, width);
            EACH_OF_TILE tile.at[row][i] =
                weight<L>(tile.at[row][i] - load<L>(lse + query + i * L::width));
            if (a.view.causal) set_future<L>(tile, key, seen.before + query, 0);
            if (sees == Documents::Sees::some)
              set_others<L>(tile, a.view.documents->keys() + first_key + key,
                            a.view.documents->queries() + first + query, 0);
            store_tile<L>(weights + place, query_block, tile);
            auto slopes = add_product<L>({}, values + row_of_keys, width, 1,
                                         turned_grads + query * width, tile_columns, width);
            tile = load_tile<L>(weights + place, query_block);
            EACH_OF_TILE tile.at[row][i] *=
                slopes.at[row][i] - load<L>(out_grad + query + i * L::width);
            store_tile<L>(grad_scores + place, query_block, tile);
          }
        }
        for (Size column = 0; column < width; column += tile_columns) {
          for (Size key = 0; key < seen.by(0, count); key += tile_rows) {
            // Queries before the key have weight 0.
            const Size query = std::max<Size>(0, key - seen.before),
                       place = key * query_block + query;
            float* at = grad_values + (first_key + key) * width + column;
            store_tile<L>(at, width,
                          add_product<L>(load_tile<L>(at, width), weights + place, query_block, 1,
                                         grads + query * width + column, width, count - query));
            at = grad_keys + (first_key + key) * width + column;
            store_tile<L>(
                at, width,
                add_product<L>(load_tile<L>(at, width), grad_scores + place, query_block, 1,
                               queries + query * width + column, width, count - query));
          }
          for (Size query = 0; query < count; query += tile_rows) {
            float* const at = grad_queries + query * width + column;
            store_tile<L>(at, width,
                          add_product<L>(load_tile<L>(at, width), grad_scores + query, 1,
                                         query_block, keys + first_key * width + column, width,
                                         seen.by(query, tile_rows)));
          }
        }
      }
      for (Size query = 0; query < count; ++query)
        unpack_row<L>(rows_from(a.grad_q, first + query, column_of_head).data,
                      grad_queries + query * width, head.scale(), head);
    }
  }
  for (Size key = 0; key < head.tokens; ++key) {
    unpack_row<L>(rows_from(a.grad_k, key).data, grad_keys + key * width, head.scale(), head);
    unpack_row<L>(rows_from(a.grad_v, key).data, grad_values + key * width, 1, head);
  }
}
ECHELON_LANES_FUNCTION(backward, Backward, backward_kernel)

Head head_of(const AttentionShape& shape) { return {shape.tokens, shape.head_width}; }

// The documents of the sequence that units are being computed of, and the part of it before its
// trailing padding.
class Sequence {
 public:
  Sequence(const AttentionShape& shape, const std::int32_t* documents)
      : shape_(shape), documents_(documents) {}

  void take(Size sequence) {
    if (sequence == taken_) return;
    taken_ = sequence;
    // Alone, causal queries see nothing of the padding behind the last key.
    if (documents_ || !shape_.causal)
      blocks_.emplace(documents_ ? documents_ + sequence * shape_.tokens : nullptr, shape_.tokens,
                      query_block);
  }
  Head head() const { return {blocks_ ? blocks_->end() : shape_.tokens, shape_.head_width}; }
  View view() const { return {shape_.causal, blocks_ ? &*blocks_ : nullptr}; }

  // Zeros for one head of the padding at the end; `rows` begin at the sequence.
  void fill_padding(TokenRows<float> rows, Size width) const {
    for (Size token = head().tokens; token < shape_.tokens; ++token) {
      float* const row = rows_from(rows, token).data;
      std::fill(row, row + width, 0.0f);
    }
  }

 private:
  const AttentionShape& shape_;
  const std::int32_t* documents_;
  Size taken_ = -1;
  std::optional<Documents> blocks_;
};

}  // namespace

Size attention_forward_scratch(const AttentionShape& shape) {
  return forward_scratch(head_of(shape));
}

Size attention_backward_scratch(const AttentionShape& shape) {
  return backward_scratch(head_of(shape));
}

Size attention_forward(const AttentionForward<float>& a, Size begin, Size end, float* scratch) {
  const AttentionShape& shape = a.shape;
  Sequence of(shape, a.documents);
  Size pairs = 0, packed = -1;  // the unit whose keys and values are in the scratch
  for (Size unit = begin; unit < end; ++unit) {
    const Size sequence = unit / shape.query_heads, head = unit % shape.query_heads,
               kv_head = head / shape.queries_per_kv();
    const Size token = sequence * shape.tokens, column = head * shape.head_width,
               kv_column = kv_head * shape.head_width,
               kv_unit = sequence * shape.kv_heads + kv_head;
    of.take(sequence);
    const auto out = rows_from(a.out, token, column);
    float* const lse = a.lse + unit * shape.tokens;
    forward({.head = of.head(),
             .view = of.view(),
             .q = rows_from(a.q, token, column),
             .k = rows_from(a.k, token, kv_column),
             .v = rows_from(a.v, token, kv_column),
             .out = out,
             .lse = lse,
             .scratch = scratch,
             .packed = kv_unit == packed,
             .pairs = &pairs});
    packed = kv_unit;
    of.fill_padding(out, shape.head_width);
    std::fill(lse + of.head().tokens, lse + shape.tokens, 0.0f);
  }
  return pairs;
}

Size attention_backward(const AttentionBackward<float>& a, Size begin, Size end, float* scratch) {
  const AttentionShape& shape = a.shape;
  const Size group = shape.queries_per_kv();
  Sequence of(shape, a.documents);
  Size pairs = 0;
  for (Size unit = begin; unit < end; ++unit) {
    const Size sequence = unit / shape.kv_heads, kv_head = unit % shape.kv_heads;
    const Size token = sequence * shape.tokens, kv_column = kv_head * shape.head_width,
               column = group * kv_column;
    of.take(sequence);
    const auto grad_q = rows_from(a.grad_q, token, column),
               grad_k = rows_from(a.grad_k, token, kv_column),
               grad_v = rows_from(a.grad_v, token, kv_column);
    backward({.head = of.head(),
              .view = of.view(),
              .query_heads = group,
              .lse_stride = shape.tokens,
              .grad = rows_from(a.grad_out, token, column),
              .q = rows_from(a.q, token, column),
              .k = rows_from(a.k, token, kv_column),
              .v = rows_from(a.v, token, kv_column),
              .out = rows_from(a.out, token, column),
              .lse = a.lse + unit * group * shape.tokens,
              .grad_q = grad_q,
              .grad_k = grad_k,
              .grad_v = grad_v,
              .scratch = scratch,
              .pairs = &pairs});
    of.fill_padding(grad_q, group * shape.head_width);
    of.fill_padding(grad_k, shape.head_width);
    of.fill_padding(grad_v, shape.head_width);
  }
  return pairs;
}

}  // namespace echelon::kernels::cpu
