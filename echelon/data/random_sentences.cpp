#include "echelon/data/random_sentences.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "echelon/base/random.h"

namespace echelon {
namespace {

// Number `i` of a sentence, from 0 to `values` - 1.
std::int64_t draw(Key key, std::int64_t sentence, std::int64_t i, std::int64_t values) {
  const auto word =
      philox(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(sentence))[0];
  return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(values)) >>
                                   32);
}

}  // namespace

std::int64_t RandomSentences::words(std::int64_t index) const {
  const auto least = (length_ + 1) / 2;
  return least + draw(derive_key(seed_, "lengths of sentences"), index, 0, length_ - least + 1);
}

std::int64_t RandomSentences::targets(std::int64_t index) const {
  if (goal_.labels > 0) return 0;
  return std::max<std::int64_t>(1, std::llround(goal_.masked * static_cast<double>(words(index))));
}

Batch RandomSentences::get(std::span<const std::int64_t> indices) const {
  const auto samples = std::ssize(indices);
  const auto table = [&] { return at::zeros({samples, length_}, at::kLong); };
  const at::Tensor input = table(), mask = table(), types = table();
  const bool labelled = goal_.labels > 0;
  const at::Tensor target =
      labelled ? at::empty({samples}, at::kLong) : at::full({samples, length_}, -100, at::kLong);
  const Key tokens = derive_key(seed_, "random sentences"),
            masked = derive_key(seed_, "masked words");
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto index = indices[std::size_t(s)], count = words(index);
    auto* const token = input.data_ptr<std::int64_t>() + s * length_;
    for (std::int64_t i = 0; i < count; ++i) token[i] = draw(tokens, index, i, vocab_);
    mask[s].narrow(0, 0, count).fill_(1);
    types[s].narrow(0, count / 2, count - count / 2).fill_(1);
    if (labelled) {
      target.data_ptr<std::int64_t>()[s] = token[0] % goal_.labels;
      continue;
    }
    // Evenly spread from a random word on. The last number of the vocabulary stands for a mask.
    auto* const word = target.data_ptr<std::int64_t>() + s * length_;
    const auto first = draw(masked, index, 0, count), wanted = targets(index);
    for (std::int64_t i = 0; i < wanted; ++i) {
      const auto at = (first + i * count / wanted) % count;
      word[at] = std::exchange(token[at], vocab_ - 1);
    }
  }
  return {input, target, {{"mask", mask}, {"token_types", types}}};
}

}  // namespace echelon
