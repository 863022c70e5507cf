// Philox from torch operators. Torch has no product of 32-bit words with a 64-bit result, but
// products of 64-bit integers wrap around, so a mask and a shift give the low and the high half.
#include "echelon/nn/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "echelon/base/error.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

constexpr std::int64_t low_word = 0xFFFFFFFF;
constexpr std::int64_t elements_at_once = 1 << 24;  // bounds the operators' temporary memory

std::int64_t threshold_of(double share) { return std::llround(share * 0x1p32); }

at::Tensor low(const at::Tensor& x) { return at::bitwise_and(x, low_word); }
at::Tensor high(const at::Tensor& x) { return low(at::bitwise_right_shift(x, 32)); }

// The words of the blocks [first, first + count), one block after another.
at::Tensor words(const DropoutMask& mask, std::int64_t first, std::int64_t count) {
  const at::Tensor block = at::arange(first, first + count, mask.step.options());
  at::Tensor c0 = low(block), c1 = high(block), c2 = low(mask.step), c3 = high(mask.step);
  auto k0 = static_cast<std::uint32_t>(mask.key);
  auto k1 = static_cast<std::uint32_t>(mask.key >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor product0 = at::mul(c0, std::int64_t{0xD2511F53}),
                     product1 = at::mul(c2, std::int64_t{0xCD9E8D57});
    c0 = at::bitwise_xor(at::bitwise_xor(high(product1), c1), std::int64_t{k0});
    c1 = low(product1);
    c2 = at::bitwise_xor(at::bitwise_xor(high(product0), c3), std::int64_t{k1});
    c3 = low(product0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return at::stack({c0, c1, c2, c3}, 1).view({-1});
}

// Applies the mask on the CPU in one pass over the elements, with the same bits as stays().
template <class T>
void drop(const at::Tensor& flat, const DropoutMask& mask, std::int64_t first) {
  T* const x = flat.data_ptr<T>();
  const auto step = static_cast<std::uint64_t>(mask.step.item<std::int64_t>());
  const auto threshold = static_cast<std::uint32_t>(threshold_of(mask.share));
  const auto scale = static_cast<at::opmath_type<T>>(1 / (1 - mask.share));
  parallel_over(flat, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::uint32_t, 1024> word;
    for (std::int64_t at = begin; at < end; at += std::ssize(word)) {
      const auto n = std::min<std::int64_t>(end - at, std::ssize(word));
      fill_words(mask.key, step, static_cast<std::uint64_t>(first + at),
                 std::span(word).first(static_cast<std::size_t>(n)));
      for (std::int64_t i = 0; i < n; ++i) {
        const auto scaled = static_cast<T>(static_cast<at::opmath_type<T>>(x[at + i]) * scale);
        x[at + i] = word[static_cast<std::size_t>(i)] >= threshold ? scaled : T(0);
      }
    }
  });
}

}  // namespace

at::Tensor stays(const DropoutMask& mask, std::int64_t first, std::int64_t count) {
  const std::int64_t block = first / 4;
  return words(mask, block, (first + count + 3) / 4 - block)
      .narrow(0, first % 4, count)
      .ge(threshold_of(mask.share));
}

Dropout::Dropout(double share, std::string place) : share_(share), place_(std::move(place)) {}

at::Tensor Dropout::forward(at::Tensor x, const Pass& pass) const {
  if (share_ > 0 && pass.training) apply(x, pass);
  return x;
}

at::Tensor Dropout::backward(const at::Tensor& grad, const Pass& pass) const {
  if (share_ == 0) return grad;
  at::Tensor copy = grad.clone(at::MemoryFormat::Contiguous);
  apply(copy, pass);
  return copy;
}

void Dropout::apply(at::Tensor& x, const Pass& pass) const {
  if (!pass.draw.step.defined() || !x.is_contiguous())
    throw Error("dropout at " + place_ +
                " needs a contiguous tensor and the number of the step: whoever runs a layer with "
                "dropout sets pass.draw");
  const DropoutMask mask{derive_key(pass.draw.seed, "dropout " + place_), pass.draw.step, share_};
  const std::int64_t before = pass.rows_are_split
                                  ? pass.draw.first_sample * pass.tokens + pass.first_row
                                  : pass.draw.first_sample;
  const std::int64_t first = before * (x.numel() / std::max<std::int64_t>(1, x.size(0)));
  const at::Tensor flat = x.view({-1});
  if (x.is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout",
                                    [&] { drop<scalar_t>(flat, mask, first); });
    return;
  }
  for (std::int64_t at = 0; at < flat.numel(); at += elements_at_once) {
    const auto n = std::min(elements_at_once, flat.numel() - at);
    flat.narrow(0, at, n)
        .mul_(1 / (1 - share_))
        .masked_fill_(stays(mask, first + at, n).logical_not_(), 0);
  }
}

}  // namespace echelon
