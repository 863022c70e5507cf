#include "echelon/data/masked_texts.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/random.h"

namespace echelon {

MaskedTexts::MaskedTexts(TokenTexts texts, TextRows rows, Masking masking)
    : rows_(rows), masking_(std::move(masking)) {
  if (texts.longest() > rows_.context)
    throw InvalidArgument(fmt::format("a text has {} tokens and the context {}: truncate texts",
                                      texts.longest(), rows_.context));
  for (const auto token : masking_.special) {
    if (std::size_t(token) >= special_.size()) special_.resize(std::size_t(token) + 1);
    special_[std::size_t(token)] = true;
  }
  targets_.reserve(std::size_t(texts.size()));
  for (std::int64_t i = 0; i < texts.size(); ++i) {
    const auto ids = texts.ids(i);
    const auto words =
        std::count_if(ids.begin(), ids.end(), [this](auto id) { return !is_special(id); });
    if (words == 0) {
      ++skipped_;
      continue;
    }
    texts_.add(ids, texts.second(i));
    const auto wanted = std::llround(masking_.share * static_cast<double>(words));
    targets_.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(wanted, 1, words)));
  }
  if (texts_.size() == 0)
    throw InvalidArgument("all texts have only special tokens: there is no word to mask");
}

Batch MaskedTexts::get(std::span<const std::int64_t> indices) const {
  std::int64_t longest = 0;
  for (const auto index : indices) longest = std::max(longest, length(index));
  return get_padded(indices, longest);
}

Batch MaskedTexts::get_padded(std::span<const std::int64_t> indices, std::int64_t length) const {
  std::vector<std::int64_t> texts(indices.begin(), indices.end());
  for (auto& text : texts) text %= size();
  Batch batch = padded_texts(texts_, texts, length, rows_);
  batch.target = at::full({std::ssize(indices), length}, -100, at::kLong);
  for (std::int64_t s = 0; s < std::ssize(indices); ++s)
    hide(indices[std::size_t(s)], batch.input.data_ptr<std::int64_t>() + s * length,
         batch.target.data_ptr<std::int64_t>() + s * length);
  return batch;
}

// The first targets() places of a permutation of the words, which depends on the index: text and
// variant.
void MaskedTexts::hide(std::int64_t index, std::int64_t* input, std::int64_t* target) const {
  std::vector<std::int64_t> words;  // places
  const auto ids = texts_.ids(index % size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (!is_special(ids[i])) words.push_back(std::int64_t(i));
  const Key key = derive_key(masking_.seed, "masked tokens");
  const auto stream = static_cast<std::uint64_t>(index);
  const auto order = philox(key, 0, stream);
  const Key chosen = std::uint64_t{order[0]} << 32 | order[1];
  for (std::uint64_t i = 0; i < std::uint64_t(targets(index)); ++i) {
    const auto at = words[permute(chosen, i, words.size())];
    const auto random = philox(key, i + 1, stream);
    target[at] = input[at];
    const auto tenth = std::uint64_t{random[0]} * 10 >> 32;
    if (tenth < 8)
      input[at] = masking_.mask;
    else if (tenth == 8)
      input[at] = std::int64_t(std::uint64_t{random[1]} * std::uint64_t(masking_.vocab) >> 32);
  }
}

}  // namespace echelon
