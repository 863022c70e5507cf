// Attention with documents and padding against torch's scaled_dot_product_attention with an
// explicit mask, through every CPU kernel.
#include "echelon/nn/attention_mask.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/nn/attention.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

at::Tensor noise(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_normal(key, 0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())), 0,
              1);
  return out;
}

// Rows of documents, one after another, each followed by padding up to `tokens`.
at::Tensor documents(const std::vector<std::vector<std::int64_t>>& rows, std::int64_t tokens) {
  at::Tensor all = at::zeros({std::ssize(rows), tokens}, at::kLong);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::int64_t at = 0, number = 1;
    for (const auto length : rows[r]) {
      all[std::int64_t(r)].narrow(0, at, length).fill_(number++);
      at += length;
    }
  }
  return all;
}

struct Result {
  at::Tensor out, grad_qkv;
};

Result ours(const at::Tensor& qkv, const at::Tensor& grad, std::int64_t heads,
            std::int64_t kv_heads, const AttentionMask& mask) {
  std::vector<at::Tensor> saved;
  const at::Tensor out = attention(qkv, heads, kv_heads, mask, saved);
  EXPECT_EQ(saved.size(), attention_saves);
  return {out, attention_backward(grad, qkv, out, heads, kv_heads, mask, saved.data())};
}

// In doubles. Torch's own treatment of padding is not used: its rows are removed afterwards.
Result torchs(const at::Tensor& qkv, const at::Tensor& grad, std::int64_t heads,
              std::int64_t kv_heads, const AttentionMask& mask) {
  const at::Tensor leaf = qkv.to(at::kDouble).set_requires_grad(true);
  const auto parts = leaf.unflatten(2, {heads + 2 * kv_heads, -1}).transpose(1, 2);
  const auto repeated = [&](std::int64_t first) {
    return parts.narrow(1, first, kv_heads).repeat_interleave(heads / kv_heads, 1);
  };
  const auto tokens = qkv.size(1);
  at::Tensor seen = at::ones({qkv.size(0), 1, tokens, tokens}, at::kBool), real;
  if (mask.causal) seen = seen.tril();
  if (mask.documents.defined()) {
    const at::Tensor& d = mask.documents;
    seen = seen.logical_and(d.unsqueeze(1).unsqueeze(3).eq(d.unsqueeze(1).unsqueeze(2)));
    real = d.ne(0).unsqueeze(-1);
  }
  at::Tensor out = at::scaled_dot_product_attention(parts.narrow(1, 0, heads), repeated(heads),
                                                    repeated(heads + kv_heads), seen)
                       .transpose(1, 2)
                       .flatten(2);
  if (real.defined()) out = out * real;
  out.backward(grad.to(at::kDouble));
  return {out.detach(), leaf.grad()};
}

struct Row {
  const char* name;
  std::vector<std::vector<std::int64_t>> lengths;
};
const std::vector<Row> rows = {
    {"padded", {{101}, {1}, {64}}},
    {"packed", {{3, 50, 48}, {1, 1, 1, 98}, {100, 1}}},
    {"packed and padded", {{3, 50}, {96, 4}, {}}},
};
constexpr std::int64_t tokens = 101;

TEST(AttentionMask, GivesWhatTorchGivesWithAnExplicitMask) {
  for (const bool causal : {true, false})
    for (const std::int64_t kv_heads : {2, 6})
      for (const auto& row : rows)
        for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
          constexpr std::int64_t heads = 6, head_width = 12;
          const at::Tensor qkv =
                               noise({3, tokens, (heads + 2 * kv_heads) * head_width}, 1).to(type),
                           grad = noise({3, tokens, heads * head_width}, 2).to(type);
          const AttentionMask mask{.causal = causal, .documents = documents(row.lengths, tokens)};
          const Result actual = ours(qkv, grad, heads, kv_heads, mask),
                       expected = torchs(qkv, grad, heads, kv_heads, mask);
          const double tolerance = type == at::kFloat ? 4e-6 : type == at::kDouble ? 1e-12 : 3e-2;
          const std::string where = std::string(row.name) + (causal ? ", causal, " : ", ") +
                                    at::toString(type) + ", " + std::to_string(kv_heads);
          EXPECT_TRUE(close(actual.out, expected.out, tolerance)) << where;
          EXPECT_TRUE(close(actual.grad_qkv, expected.grad_qkv, tolerance)) << where;
          const at::Tensor padding = mask.documents.eq(0);
          EXPECT_EQ(actual.out.index({padding}).abs().sum().item<double>(), 0) << where;
          EXPECT_EQ(actual.grad_qkv.index({padding}).abs().sum().item<double>(), 0) << where;
        }
}

// A head of 257 is too wide for our own kernel.
TEST(AttentionMask, IsTheSameForHeadsOfAnyWidthAndWithoutDocuments) {
  for (const auto& [heads, head_width] : {std::pair<std::int64_t, std::int64_t>{1, 257}, {3, 5}})
    for (const auto type : {at::kFloat, at::kDouble})
      for (const bool some : {true, false}) {
        const at::Tensor qkv = noise({3, tokens, 3 * heads * head_width}, 1).to(type),
                         grad = noise({3, tokens, heads * head_width}, 2).to(type);
        AttentionMask mask{.causal = false};
        if (some) mask.documents = documents(rows[2].lengths, tokens).to(at::kInt);
        const Result actual = ours(qkv, grad, heads, heads, mask),
                     expected = torchs(qkv, grad, heads, heads, mask);
        const double tolerance = type == at::kFloat ? 4e-6 : 1e-12;
        EXPECT_TRUE(close(actual.out, expected.out, tolerance)) << heads << " heads";
        EXPECT_TRUE(close(actual.grad_qkv, expected.grad_qkv, tolerance)) << heads << " heads";
      }
}

// What stands beside a document, and how many threads compute, changes no bit of it.
TEST(AttentionMask, HasTheBitsOfEachDocumentAlone) {
  const int before = at::get_num_threads();
  const at::Tensor qkv = noise({3, tokens, 3 * 24}, 1).to(at::kFloat),
                   grad = noise({3, tokens, 24}, 2).to(at::kFloat);
  for (const bool causal : {true, false}) {
    const AttentionMask padded{.causal = causal, .documents = documents(rows[0].lengths, tokens)};
    at::set_num_threads(1);
    const Result whole = ours(qkv, grad, 2, 2, padded);
    for (std::int64_t s = 0; s < 3; ++s) {
      const auto length = rows[0].lengths[std::size_t(s)].front();
      const auto alone = [&](const at::Tensor& x) {
        return x.narrow(0, s, 1).narrow(1, 0, length).contiguous();
      };
      const Result one = ours(alone(qkv), alone(grad), 2, 2, {.causal = causal});
      EXPECT_TRUE(at::equal(alone(whole.out), one.out)) << length << " tokens";
      EXPECT_TRUE(at::equal(alone(whole.grad_qkv), one.grad_qkv)) << length << " tokens";
    }
    for (const int threads : {2, 3, 7}) {
      at::set_num_threads(threads);
      const Result together = ours(qkv, grad, 2, 2, padded);
      EXPECT_TRUE(at::equal(whole.out, together.out)) << threads << " threads";
      EXPECT_TRUE(at::equal(whole.grad_qkv, together.grad_qkv)) << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

TEST(AttentionMask, RefusesNumbersThatAreNoDocuments) {
  std::vector<at::Tensor> saved;
  const at::Tensor qkv = at::zeros({2, 4, 6});
  const auto refusal = [&](const at::Tensor& given) {
    return thrown<InvalidArgument>(
        [&] { attention(qkv, 1, 1, {.causal = false, .documents = given}, saved); });
  };
  EXPECT_EQ(refusal(at::full({2, 4}, -1, at::kLong)),
            "the batch's 'mask' has the number -1: 0 is padding, and documents are 1, 2, 3, …");
  EXPECT_EQ(refusal(at::full({2, 4}, std::int64_t{1} << 32, at::kLong)),
            "the batch's 'mask' has the number 4294967296: 0 is padding, and documents are 1, 2, "
            "3, …");
  EXPECT_EQ(refusal(at::ones({2, 5}, at::kLong)),
            "the batch's 'mask' is Long [2, 5]; attention takes [2, 4] integers (int32 or int64), "
            "a number for each token");
  EXPECT_EQ(refusal(at::ones({2, 4})),
            "the batch's 'mask' is Float [2, 4]; attention takes [2, 4] integers (int32 or int64), "
            "a number for each token");
}

}  // namespace
}  // namespace echelon
