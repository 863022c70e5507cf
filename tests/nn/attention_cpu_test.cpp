// Our CPU attention against the plain formula in doubles, at sizes that fill no block.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "echelon/base/random.h"
#include "echelon/nn/attention.h"
#include "echelon/nn/attention_cpu.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

at::Tensor noise(at::IntArrayRef shape, std::uint64_t key, double stddev = 1) {
  at::Tensor out = at::empty(shape, at::kFloat);
  fill_normal(key, 0, std::span(out.data_ptr<float>(), static_cast<std::size_t>(out.numel())), 0,
              stddev);
  return out;
}

struct Result {
  at::Tensor out, grad_qkv;
};

Result grouped(const at::Tensor& qkv, const at::Tensor& grad, std::int64_t heads,
               std::int64_t kv_heads) {
  const Attended attended = attention_cpu(qkv, heads, kv_heads);
  return {attended.out, attention_cpu_backward(grad, qkv, attended, heads, kv_heads)};
}

Result ours(const at::Tensor& qkv, const at::Tensor& grad, std::int64_t heads) {
  return grouped(qkv, grad, heads, heads);
}

struct Parts {
  at::Tensor q, k, v;  // [batch, heads, tokens, head width]
};

Parts parts_of(const at::Tensor& qkv, std::int64_t heads) {
  const auto parts = qkv.reshape({qkv.size(0), qkv.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
  return {parts[0], parts[1], parts[2]};
}

at::Tensor merge(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

Result plain(const at::Tensor& qkv, const at::Tensor& grad, std::int64_t heads) {
  const at::Tensor leaf = qkv.to(at::kDouble).set_requires_grad(true);
  const auto [q, k, v] = parts_of(leaf, heads);
  const at::Tensor future = at::ones({qkv.size(1), qkv.size(1)}, at::kBool).triu(1);
  const at::Tensor scores =
      (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3))))
          .masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor out = merge(scores.softmax(-1).matmul(v));
  out.backward(grad.to(at::kDouble));
  return {out.detach(), leaf.grad()};
}

Result torchs(const at::Tensor& qkv, const at::Tensor& grad, std::int64_t heads) {
  const auto [q, k, v] = parts_of(qkv, heads);
  const auto by_head = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
  };
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
  const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      by_head(grad), q, k, v, out, lse, 0.0, true);
  return {merge(out), at::cat({merge(grad_q), merge(grad_k), merge(grad_v)}, 2)};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(AttentionCpu, MatchesThePlainFormulaAtOddSizes) {
  for (const std::int64_t tokens : {1, 2, 7, 63, 64, 65, 100, 256, 300})
    for (const std::int64_t head_width : {1, 5, 8, 24, 64, 72, 128, 256}) {
      constexpr std::int64_t batch = 2, heads = 3;
      const at::Tensor qkv = noise({batch, tokens, 3 * heads * head_width}, 1),
                       grad = noise({batch, tokens, heads * head_width}, 2);
      const Result actual = ours(qkv, grad, heads), expected = plain(qkv, grad, heads);
      const std::string sizes =
          std::to_string(tokens) + " tokens, heads of " + std::to_string(head_width);
      EXPECT_TRUE(close(actual.out, expected.out, 1e-6)) << sizes;
      EXPECT_TRUE(close(actual.grad_qkv, expected.grad_qkv, 2e-6)) << sizes;
    }
}

TEST(AttentionCpu, IsChosenForFloatsOnACpu) {
  const at::Tensor qkv = noise({2, 50, 3 * 48}, 1), grad = noise({2, 50, 48}, 2);
  std::vector<at::Tensor> saved;
  const at::Tensor out = attention(qkv, 2, 2, {}, saved);
  const Result expected = ours(qkv, grad, 2);
  EXPECT_TRUE(at::equal(out, expected.out));
  EXPECT_TRUE(
      at::equal(attention_backward(grad, qkv, out, 2, 2, {}, saved.data()), expected.grad_qkv));
  EXPECT_EQ(attention_kernel(at::kCPU, at::kFloat, 24), "Echelon (CPU)");
  EXPECT_EQ(attention_kernel(at::kCPU, at::kFloat, 257), "flash (CPU)");
  EXPECT_EQ(attention_kernel(at::kCPU, at::kDouble, 24), "flash (CPU)");
  EXPECT_EQ(attention_kernel(at::kCPU, at::kBFloat16, 24), "flash (CPU)");
}

// A qkv with `kv_heads` key/value heads, with keys and values repeated for every query head.
at::Tensor repeated(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const at::Tensor parts = qkv.unflatten(2, {heads + 2 * kv_heads, -1});
  return at::cat({parts.narrow(2, 0, heads),
                  parts.narrow(2, heads, 2 * kv_heads).repeat_interleave(heads / kv_heads, 2)},
                 2)
      .flatten(2);
}

TEST(AttentionCpu, SharesKeysAndValuesBetweenGroupedQueries) {
  constexpr std::int64_t batch = 2, tokens = 101, heads = 6, head_width = 20;
  for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
    const at::Tensor qkv = noise({batch, tokens, (heads + 2 * kv_heads) * head_width}, 1),
                     grad = noise({batch, tokens, heads * head_width}, 2);
    const Result actual = grouped(qkv, grad, heads, kv_heads);
    const at::Tensor leaf = qkv.to(at::kDouble).set_requires_grad(true);
    const at::Tensor all = repeated(leaf, heads, kv_heads);
    const Result expected = plain(all.detach(), grad, heads);
    all.backward(expected.grad_qkv);
    EXPECT_TRUE(close(actual.out, expected.out, 1e-6)) << kv_heads << " key/value heads";
    EXPECT_TRUE(close(actual.grad_qkv, leaf.grad(), 4e-6)) << kv_heads << " key/value heads";
    EXPECT_TRUE(at::equal(actual.out, ours(repeated(qkv, heads, kv_heads), grad, heads).out))
        << kv_heads << " key/value heads";
    // Through torch's kernel, which needs equal numbers of query and key/value heads.
    std::vector<at::Tensor> saved;
    const at::Tensor in_doubles = qkv.to(at::kDouble), grad_doubles = grad.to(at::kDouble);
    const at::Tensor out = attention(in_doubles, heads, kv_heads, {}, saved);
    EXPECT_TRUE(close(out, expected.out, 1e-12)) << kv_heads << " key/value heads";
    EXPECT_TRUE(
        close(attention_backward(grad_doubles, in_doubles, out, heads, kv_heads, {}, saved.data()),
              leaf.grad(), 1e-12))
        << kv_heads << " key/value heads";
  }
}

TEST(AttentionCpu, HasTheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const at::Tensor qkv = noise({3, 130, 3 * 5 * 24}, 1), grad = noise({3, 130, 5 * 24}, 2);
  at::set_num_threads(1);
  const Result alone = ours(qkv, grad, 5);
  for (const int threads : {2, 3, 7}) {
    at::set_num_threads(threads);
    const Result together = ours(qkv, grad, 5);
    EXPECT_TRUE(at::equal(alone.out, together.out)) << threads << " threads";
    EXPECT_TRUE(at::equal(alone.grad_qkv, together.grad_qkv)) << threads << " threads";
  }
  at::set_num_threads(before);
}

TEST(AttentionCpu, SeesNothingOfTheFuture) {
  constexpr std::int64_t tokens = 200;
  const at::Tensor qkv = noise({1, tokens, 3 * 2 * 24}, 1);
  const at::Tensor before = attention_cpu(qkv, 2, 2).out;
  for (const std::int64_t now : {1, 5, 16, 47, 48, 95, 97, 144, 199}) {
    at::Tensor changed = qkv.clone();
    changed.narrow(1, now, tokens - now).mul_(-50);
    EXPECT_TRUE(
        at::equal(attention_cpu(changed, 2, 2).out.narrow(1, 0, now), before.narrow(1, 0, now)))
        << "token " << now;
    const at::Tensor shorter = qkv.narrow(1, 0, now).contiguous();
    EXPECT_TRUE(at::equal(attention_cpu(shorter, 2, 2).out, before.narrow(1, 0, now)))
        << now << " tokens";
  }
}

TEST(AttentionCpu, GivesNoGradientFromThePast) {
  constexpr std::int64_t tokens = 200;
  const at::Tensor qkv = noise({1, tokens, 3 * 2 * 24}, 1);
  for (const std::int64_t now : {1, 5, 47, 48, 97, 199}) {
    at::Tensor grad = noise({1, tokens, 2 * 24}, 2);
    grad.narrow(1, now, tokens - now).zero_();
    const at::Tensor later = ours(qkv, grad, 2).grad_qkv.narrow(1, now, tokens - now);
    EXPECT_TRUE(at::equal(later, at::zeros_like(later))) << "token " << now;
  }
}

// Scores far apart give weights of 0 and 1, and large scores round more, but no more than torch's.
TEST(AttentionCpu, StaysAccurateWithLargeScores) {
  for (const double stddev : {10.0, 100.0, 1e4}) {
    const at::Tensor qkv = noise({2, 150, 3 * 2 * 64}, 1, stddev), grad = noise({2, 150, 128}, 2);
    const Result actual = ours(qkv, grad, 2), expected = plain(qkv, grad, 2),
                 theirs = torchs(qkv, grad, 2);
    EXPECT_LE(distance(actual.out, expected.out),
              2 * distance(theirs.out, expected.out) + 1e-6 * stddev);
    EXPECT_LE(distance(actual.grad_qkv, expected.grad_qkv),
              2 * distance(theirs.grad_qkv, expected.grad_qkv) + 1e-6 * stddev);
  }
}

// A NaN in a query spoils its token; a NaN in a key or a gradient spoils what depends on it, in one
// head.
TEST(AttentionCpu, GivesNaNsWhereTorchDoes) {
  constexpr std::int64_t tokens = 130, width = 48, heads = 2;
  const auto grad = noise({1, tokens, width}, 2);
  for (const std::int64_t token : {0, 50, 96, 129})
    for (const std::int64_t part : {0, 1}) {
      at::Tensor qkv = noise({1, tokens, 3 * width}, 1);
      qkv[0][token][part * width + 3] = not_a_number;
      const Result actual = ours(qkv, grad, heads), theirs = torchs(qkv, grad, heads);
      const std::string place =
          (part == 0 ? "query " : "key ") + std::to_string(token) + " is not a number";
      EXPECT_TRUE(at::equal(actual.out.isnan(), theirs.out.isnan())) << place;
      EXPECT_TRUE(actual.out.isnan().any().item<bool>()) << place;
      EXPECT_FALSE(actual.out.narrow(2, 24, 24).isnan().any().item<bool>()) << place;
      EXPECT_TRUE(actual.grad_qkv[0][token].isnan().any().item<bool>()) << place;
    }
  at::Tensor qkv = noise({1, tokens, 3 * width}, 1);
  qkv[0][60][2 * width] = not_a_number;
  const at::Tensor out = ours(qkv, grad, heads).out.select(2, 0)[0];
  EXPECT_TRUE(out.narrow(0, 60, tokens - 60).isnan().all().item<bool>()) << "a value";
  EXPECT_FALSE(out.narrow(0, 0, 54).isnan().any().item<bool>()) << "a value";
}

// A score of minus infinity gives a weight of zero; a score of infinity gives NaN.
TEST(AttentionCpu, TreatsInfiniteScoresAsTorchDoes) {
  for (const double key : {-3e38, 3e38}) {
    at::Tensor qkv = noise({1, 40, 3 * 16}, 1);
    qkv.narrow(2, 0, 16).abs_().add_(10);
    qkv.narrow(2, 16, 16).select(1, 20).fill_(key);
    const at::Tensor grad = noise({1, 40, 16}, 2);
    const at::Tensor actual = ours(qkv, grad, 1).out, theirs = torchs(qkv, grad, 1).out;
    EXPECT_TRUE(close(actual, theirs, 1e-6)) << key;
    EXPECT_EQ(actual.isnan().any().item<bool>(), key > 0);
  }
}

TEST(AttentionCpu, AcceptsAnEmptyBatch) {
  const at::Tensor qkv = at::empty({0, 5, 3 * 16}), grad = at::empty({0, 5, 16});
  EXPECT_EQ(ours(qkv, grad, 2).grad_qkv.numel(), 0);
}

}  // namespace
}  // namespace echelon
