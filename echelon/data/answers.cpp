#include "echelon/data/answers.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

bool add_answer(TokenTexts& texts, std::span<const std::int32_t> prompt,
                std::span<const std::int32_t> answer, std::int64_t kept, std::int64_t most) {
  const auto all = std::ssize(prompt) + std::ssize(answer);
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  if (all > most) {
    const auto least = std::min(std::max<std::int64_t>(kept, 1), std::ssize(prompt));
    const auto left = std::clamp(most - std::ssize(answer), least, std::ssize(prompt));
    const auto first = ids.begin() + std::min(kept, left);
    ids.erase(first, first + (std::ssize(prompt) - left));
  }
  const auto begins = std::ssize(ids);
  const auto rest = std::clamp<std::int64_t>(most - begins, 0, std::ssize(answer));
  ids.insert(ids.end(), answer.begin(), answer.begin() + rest);
  texts.add(ids, begins);
  return all > most;
}

Answers::Answers(TokenTexts texts, std::int64_t context, std::int32_t padding,
                 const PlaceOf& place_of)
    : texts_(std::move(texts)), context_(context), padding_(padding) {
  const auto named = [&](std::int64_t i) {
    return place_of ? place_of(i) + ": the sample" : fmt::format("sample {}", i);
  };
  for (std::int64_t i = 0; i < texts_.size(); ++i) {
    const auto tokens = std::ssize(texts_.ids(i)), second = texts_.second(i);
    if (second < 1 || second >= tokens)
      throw InvalidArgument(
          fmt::format("{} has {} tokens of a prompt and {} of an answer; it needs both", named(i),
                      second, tokens - second));
    if (tokens > context_ + 1)
      throw InvalidArgument(
          fmt::format("{} has {} tokens, and a context of {} takes one more than that", named(i),
                      tokens, context_));
  }
}

std::int64_t Answers::targets(std::int64_t index) const {
  return std::ssize(texts_.ids(index)) - texts_.second(index);
}

Batch Answers::get(std::span<const std::int64_t> indices) const {
  std::int64_t longest = 0;
  for (const auto index : indices) longest = std::max(longest, length(index));
  return get_padded(indices, longest);
}

Batch Answers::get_padded(std::span<const std::int64_t> indices, std::int64_t length) const {
  const auto samples = std::ssize(indices);
  const Batch batch{at::full({samples, length}, padding_, at::kLong),
                    at::full({samples, length}, -100, at::kLong)};
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto ids = texts_.ids(indices[std::size_t(s)]);
    const auto second = texts_.second(indices[std::size_t(s)]);
    std::copy(ids.begin(), ids.end() - 1, batch.input.data_ptr<std::int64_t>() + s * length);
    std::copy(ids.begin() + second, ids.end(),
              batch.target.data_ptr<std::int64_t>() + s * length + second - 1);
  }
  return batch;
}

}  // namespace echelon
