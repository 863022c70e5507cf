// Attention on raw memory against plain loops in doubles: sizes that fill no block, grouped
// queries, strided rows.
#include "echelon/kernels/cpu/attention.h"

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

struct Tensors {
  explicit Tensors(const AttentionShape& s)
      : shape(s),
        q(s, s.query_heads, 1),
        k(s, s.kv_heads, 2),
        v(s, s.kv_heads, 3),
        grad_out(s, s.query_heads, 4),
        out(s, s.query_heads, 5),
        grad_q(s, s.query_heads, 6),
        grad_k(s, s.kv_heads, 7),
        grad_v(s, s.kv_heads, 8),
        lse(static_cast<std::size_t>(s.batch * s.query_heads * s.tokens)) {}

  // By the kernel, in the given number of ranges.
  void run(Size ranges) {
    const auto over = [&](Size units, Size scratch_size, const auto& fn) {
      for (Size i = 0; i < ranges; ++i) {
        std::vector<float> scratch(static_cast<std::size_t>(scratch_size), 7.0f);
        fn(units * i / ranges, units * (i + 1) / ranges, scratch.data());
      }
    };
    const AttentionForward<float> forward{shape,    q.read(),    k.read(),
                                          v.read(), out.write(), lse.data()};
    over(shape.batch * shape.query_heads, cpu::attention_forward_scratch(shape),
         [&](Size begin, Size end, float* scratch) {
           cpu::attention_forward(forward, begin, end, scratch);
         });
    const AttentionBackward<float> backward{
        shape,      grad_out.read(), q.read(),       k.read(),       v.read(),
        out.read(), lse.data(),      grad_q.write(), grad_k.write(), grad_v.write()};
    over(shape.batch * shape.kv_heads, cpu::attention_backward_scratch(shape),
         [&](Size begin, Size end, float* scratch) {
           cpu::attention_backward(backward, begin, end, scratch);
         });
  }

  AttentionShape shape;
  Rows q, k, v, grad_out, out, grad_q, grad_k, grad_v;
  std::vector<float> lse;
};

// The expected result of `run`, in doubles. Numbers between the rows stay unchanged.
struct Expected {
  std::vector<double> out, grad_q, grad_k, grad_v, lse;
};

Expected plain(const Tensors& t) {
  const auto [batch, tokens, query_heads, kv_heads, width] = t.shape;
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
        std::vector<double> weights;
        double total = 0;
        for (Size key = 0; key <= query; ++key) {
          double score = 0;
          for (Size i = 0; i < width; ++i)
            score += static_cast<double>(t.q.numbers[at(t.q, query, h, i)]) *
                     static_cast<double>(t.k.numbers[at(t.k, key, kv, i)]);
          weights.push_back(std::exp(score * scale));
          total += weights.back();
        }
        e.lse[static_cast<std::size_t>((s * query_heads + h) * tokens + query)] = std::log2(total);
        double out_grad = 0;
        for (Size i = 0; i < width; ++i) {
          double sum = 0;
          for (Size key = 0; key <= query; ++key)
            sum += weights[static_cast<std::size_t>(key)] / total *
                   static_cast<double>(t.v.numbers[at(t.v, key, kv, i)]);
          e.out[at(t.out, query, h, i)] = sum;
          out_grad += sum * static_cast<double>(t.grad_out.numbers[at(t.grad_out, query, h, i)]);
          e.grad_q[at(t.q, query, h, i)] = 0;
        }
        for (Size key = 0; key <= query; ++key) {
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

void expect_plain(const AttentionShape& shape) {
  Tensors t(shape);
  const Expected expected = plain(t);
  t.run(1);
  const std::string sizes =
      std::to_string(shape.tokens) + " tokens, heads of " + std::to_string(shape.head_width) +
      ", " + std::to_string(shape.query_heads) + " over " + std::to_string(shape.kv_heads);
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

TEST(AttentionKernel, HasTheSameBitsInAnyRanges) {
  for (const Size kv_heads : {1, 2, 4}) {
    const AttentionShape shape{
        .batch = 3, .tokens = 60, .query_heads = 4, .kv_heads = kv_heads, .head_width = 9};
    Tensors whole(shape);
    whole.run(1);
    for (const Size ranges : {2, 5, 12}) {
      Tensors parts(shape);
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
