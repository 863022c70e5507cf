// Attention on raw memory against plain loops in doubles: sizes that fill no block, grouped
// queries, strided rows, documents and padding, with and without a view of the future.
#include "echelon/kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

using Size = std::int64_t;

// q, k, v or a gradient with a few unused numbers between the rows.
struct Rows {
  Rows(const AttentionShape& shape, Size heads, std::uint32_t seed)
      : stride(heads * shape.head_width + 3),
        numbers(noise(shape.batch * shape.tokens * stride, seed)) {}

  TokenRows<const float> read() const { return {numbers.data(), stride}; }
  TokenRows<float> write() { return {numbers.data(), stride}; }

  Size stride;
  std::vector<float> numbers;
};

using Numbers = std::vector<std::int32_t>;

struct Tensors {
  // The numbers of documents are for all tokens; none: one document.
  explicit Tensors(const AttentionShape& s, Numbers numbers = {})
      : shape(s),
        documents(std::move(numbers)),
        q(s, s.query_heads, 1),
        k(s, s.kv_heads, 2),
        v(s, s.kv_heads, 3),
        grad_out(s, s.query_heads, 4),
        out(s, s.query_heads, 5),
        grad_q(s, s.query_heads, 6),
        grad_k(s, s.kv_heads, 7),
        grad_v(s, s.kv_heads, 8),
        lse(static_cast<std::size_t>(s.batch * s.query_heads * s.tokens)) {}

  bool sees(Size sequence, Size query, Size key) const {
    const auto document = [&](Size token) {
      return documents.empty() ? 1 : documents[std::size_t(sequence * shape.tokens + token)];
    };
    return document(query) != 0 && document(query) == document(key) &&
           (key <= query || !shape.causal);
  }

  // By the kernel, in the given number of ranges.
  void run(Size ranges) {
    const auto over = [&](Size units, Size scratch_size, const auto& fn) {
      for (Size i = 0; i < ranges; ++i) {
        std::vector<float> scratch(static_cast<std::size_t>(scratch_size), 7.0f);
        pairs.push_back(fn(units * i / ranges, units * (i + 1) / ranges, scratch.data()));
      }
    };
    const auto* numbers = documents.empty() ? nullptr : documents.data();
    const AttentionForward<float> forward{shape,       q.read(),   k.read(), v.read(),
                                          out.write(), lse.data(), numbers};
    over(shape.batch * shape.query_heads, cpu::attention_forward_scratch(shape),
         [&](Size begin, Size end, float* scratch) {
           return cpu::attention_forward(forward, begin, end, scratch);
         });
    const AttentionBackward<float> backward{
        shape,      grad_out.read(), q.read(),       k.read(),       v.read(), out.read(),
        lse.data(), grad_q.write(),  grad_k.write(), grad_v.write(), numbers};
    over(shape.batch * shape.kv_heads, cpu::attention_backward_scratch(shape),
         [&](Size begin, Size end, float* scratch) {
           return cpu::attention_backward(backward, begin, end, scratch);
         });
  }

  AttentionShape shape;
  Numbers documents;
  std::vector<Size> pairs;  // of blocks, by call: forward and backward
  Rows q, k, v, grad_out, out, grad_q, grad_k, grad_v;
  std::vector<float> lse;
};

// The expected result of `run`, in doubles. Numbers between the rows stay unchanged.
struct Expected {
  std::vector<double> out, grad_q, grad_k, grad_v, lse;
};

Expected plain(const Tensors& t) {
  const auto [batch, tokens, query_heads, kv_heads, width, causal] = t.shape;
  const auto doubles = [](const std::vector<float>& x) {
    return std::vector<double>(x.begin(), x.end());
  };
  Expected e{doubles(t.out.numbers), doubles(t.grad_q.numbers), doubles(t.grad_k.numbers),
             doubles(t.grad_v.numbers), std::vector<double>(t.lse.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  for (Size s = 0; s < batch; ++s)
    for (Size h = 0; h < query_heads; ++h) {
      const Size kv = h / (query_heads / kv_heads);
      const auto at = [&](const Rows& rows, Size token, Size head, Size i) {
        return static_cast<std::size_t>((s * tokens + token) * rows.stride + head * width + i);
      };
      if (h % (query_heads / kv_heads) == 0)
        for (Size token = 0; token < tokens; ++token)
          for (Size i = 0; i < width; ++i)
            e.grad_k[at(t.k, token, kv, i)] = e.grad_v[at(t.v, token, kv, i)] = 0;
      for (Size query = 0; query < tokens; ++query) {
        std::vector<double> weights(std::size_t(tokens), 0.0);
        double total = 0;
        for (Size key = 0; key < tokens; ++key) {
          if (!t.sees(s, query, key)) continue;
          double score = 0;
          for (Size i = 0; i < width; ++i)
            score += static_cast<double>(t.q.numbers[at(t.q, query, h, i)]) *
                     static_cast<double>(t.k.numbers[at(t.k, key, kv, i)]);
          weights[std::size_t(key)] = std::exp(score * scale);
          total += weights[std::size_t(key)];
        }
        e.lse[static_cast<std::size_t>((s * query_heads + h) * tokens + query)] =
            total > 0 ? std::log2(total) : 0;
        if (total == 0) total = 1;  // padding
        double out_grad = 0;
        for (Size i = 0; i < width; ++i) {
          double sum = 0;
          for (Size key = 0; key < tokens; ++key)
            sum += weights[static_cast<std::size_t>(key)] / total *
                   static_cast<double>(t.v.numbers[at(t.v, key, kv, i)]);
          e.out[at(t.out, query, h, i)] = sum;
          out_grad += sum * static_cast<double>(t.grad_out.numbers[at(t.grad_out, query, h, i)]);
          e.grad_q[at(t.q, query, h, i)] = 0;
        }
        for (Size key = 0; key < tokens; ++key) {
          const double weight = weights[static_cast<std::size_t>(key)] / total;
          double grad_weight = 0;
          for (Size i = 0; i < width; ++i) {
            const auto grad = static_cast<double>(t.grad_out.numbers[at(t.grad_out, query, h, i)]);
            grad_weight += grad * static_cast<double>(t.v.numbers[at(t.v, key, kv, i)]);
            e.grad_v[at(t.v, key, kv, i)] += weight * grad;
          }
          const double grad_score = scale * weight * (grad_weight - out_grad);
          for (Size i = 0; i < width; ++i) {
            e.grad_q[at(t.q, query, h, i)] +=
                grad_score * static_cast<double>(t.k.numbers[at(t.k, key, kv, i)]);
            e.grad_k[at(t.k, key, kv, i)] +=
                grad_score * static_cast<double>(t.q.numbers[at(t.q, query, h, i)]);
          }
        }
      }
    }
  return e;
}

void expect_plain(const AttentionShape& shape, const Numbers& documents = {}) {
  Tensors t(shape, documents);
  const Expected expected = plain(t);
  t.run(1);
  const std::string sizes =
      std::to_string(shape.tokens) + " tokens, heads of " + std::to_string(shape.head_width) +
      ", " + std::to_string(shape.query_heads) + " over " + std::to_string(shape.kv_heads) +
      (shape.causal ? "" : ", in both directions");
  EXPECT_TRUE(close(t.out.numbers, expected.out, 1e-6)) << "out: " << sizes;
  EXPECT_TRUE(close(t.lse, expected.lse, 1e-6)) << "lse: " << sizes;
  EXPECT_TRUE(close(t.grad_q.numbers, expected.grad_q, 2e-6)) << "grad_q: " << sizes;
  EXPECT_TRUE(close(t.grad_k.numbers, expected.grad_k, 2e-6)) << "grad_k: " << sizes;
  EXPECT_TRUE(close(t.grad_v.numbers, expected.grad_v, 2e-6)) << "grad_v: " << sizes;
}

TEST(AttentionKernel, AgreesWithThePlainLoopAtOddSizes) {
  for (const Size tokens : {1, 2, 7, 47, 49, 97, 150})
    for (const Size head_width : {1, 5, 24, 67})
      expect_plain({.batch = 2,
                    .tokens = tokens,
                    .query_heads = 3,
                    .kv_heads = 3,
                    .head_width = head_width});
}

TEST(AttentionKernel, SharesKeysAndValuesBetweenGroupedQueries) {
  for (const Size kv_heads : {1, 2, 3, 6})
    expect_plain(
        {.batch = 2, .tokens = 101, .query_heads = 6, .kv_heads = kv_heads, .head_width = 20});
}

TEST(AttentionKernel, SeesTheFutureIfItIsNotCausal) {
  for (const Size tokens : {1, 2, 7, 47, 49, 97, 150})
    for (const Size head_width : {1, 5, 24, 67})
      for (const Size kv_heads : {1, 3})
        expect_plain({.batch = 2,
                      .tokens = tokens,
                      .query_heads = 3,
                      .kv_heads = kv_heads,
                      .head_width = head_width,
                      .causal = false});
}

// Documents of the given lengths one after another, the first with the given number.
Numbers row(const std::vector<Size>& lengths, std::int32_t number, Size tokens) {
  Numbers all;
  for (const Size length : lengths) all.insert(all.end(), std::size_t(length), number++);
  all.resize(std::size_t(tokens), 0);
  return all;
}

Numbers join(std::vector<Numbers> rows) {
  Numbers all;
  for (const auto& one : rows) all.insert(all.end(), one.begin(), one.end());
  return all;
}

TEST(AttentionKernel, SeesItsOwnDocumentAndNoPadding) {
  constexpr Size tokens = 200;
  Numbers reversed = row({70, 3, 60}, 1, tokens), mixed(tokens), holes = row({200}, 2, tokens);
  std::reverse(reversed.begin(), reversed.end());  // padding comes first
  for (std::size_t i = 0; i < tokens; ++i) mixed[i] = std::int32_t(i * i % 5);  // in no order
  for (std::size_t i = 48; i < 110; ++i) holes[i] = 0;
  const std::vector<std::pair<const char*, Numbers>> cases = {
      {"padded", join({row({131}, 1, tokens), row({7}, 1, tokens)})},
      {"packed", join({row({5, 43, 48, 1, 60, 43}, 1, tokens), row({1, 100}, 7, tokens)})},
      {"padding first", join({reversed, row({200}, 1, tokens)})},
      {"in no order", join({mixed, holes})},
      {"only padding", join({row({}, 1, tokens), row({48}, 1, tokens)})},
      {"large numbers", join({row({30, 30, 30}, 0x7FFFFFF0, tokens), row({30, 90}, 63, tokens)})}};
  for (const bool causal : {true, false})
    for (const auto& [name, documents] : cases) {
      SCOPED_TRACE(name);
      expect_plain({.batch = 2,
                    .tokens = tokens,
                    .query_heads = 4,
                    .kv_heads = 2,
                    .head_width = 9,
                    .causal = causal},
                   documents);
    }
}

// 48 queries meet 96 keys at a time.
TEST(AttentionKernel, ComputesOnlyBlocksOfDocumentsThatMeet) {
  constexpr Size tokens = 1024;
  const auto pairs = [](const Numbers& documents, bool causal) {
    Tensors t({.batch = 1,
               .tokens = tokens,
               .query_heads = 1,
               .kv_heads = 1,
               .head_width = 4,
               .causal = causal},
              documents);
    t.run(1);
    EXPECT_EQ(t.pairs[0], t.pairs[1]) << "forward and backward";
    return t.pairs[0];
  };
  EXPECT_EQ(pairs({}, false), 22 * 11);
  EXPECT_EQ(pairs({}, true), 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11));
  EXPECT_EQ(pairs(row({60}, 1, tokens), false), 2 * 1) << "60 tokens, the rest is padding";
  EXPECT_EQ(pairs(row({}, 1, tokens), false), 0);
  EXPECT_EQ(pairs(row({96, 96, 96, 96}, 1, tokens), false), 4 * 2) << "documents of whole blocks";
  EXPECT_EQ(pairs(row({96, 96, 96, 96}, 1, tokens), true), 4 * 2);
  EXPECT_EQ(pairs(row({192, 192}, 1, tokens), true), 2 * (1 + 1 + 2 + 2));
  Numbers far = row({96, 96}, 1, tokens);
  std::fill(far.end() - 96, far.end(), 1);  // the first document goes on at the end
  EXPECT_EQ(pairs(far, false), 2 * 1 + 5 * 3)
      << "the last 96 tokens are in three blocks of queries and two of keys";
}

TEST(AttentionKernel, HasTheSameBitsInAnyRanges) {
  const Numbers documents = join({row({50, 10}, 1, 60), row({20}, 1, 60), row({}, 1, 60)});
  for (const bool causal : {true, false})
    for (const Size kv_heads : {1, 2, 4}) {
      const AttentionShape shape{.batch = 3,
                                 .tokens = 60,
                                 .query_heads = 4,
                                 .kv_heads = kv_heads,
                                 .head_width = 9,
                                 .causal = causal};
      Tensors whole(shape, documents);
      whole.run(1);
      for (const Size ranges : {2, 5, 12}) {
        Tensors parts(shape, documents);
        parts.run(ranges);
        EXPECT_EQ(parts.out.numbers, whole.out.numbers) << ranges << " ranges";
        EXPECT_EQ(parts.grad_q.numbers, whole.grad_q.numbers) << ranges << " ranges";
        EXPECT_EQ(parts.grad_k.numbers, whole.grad_k.numbers) << ranges << " ranges";
        EXPECT_EQ(parts.grad_v.numbers, whole.grad_v.numbers) << ranges << " ranges";
      }
    }
}

}  // namespace
}  // namespace echelon::kernels
