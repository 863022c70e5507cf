#include "echelon/data/labelled_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

Batch padded_texts(const TokenTexts& texts, std::span<const std::int64_t> indices,
                   std::int64_t length, const TextRows& rows) {
  const auto samples = std::ssize(indices);
  const at::Tensor input = at::full({samples, length}, rows.padding, at::kLong),
                   mask = at::zeros({samples, length}, at::kLong),
                   types = rows.types ? at::zeros({samples, length}, at::kLong) : at::Tensor();
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto text = indices[std::size_t(s)];
    const auto ids = texts.ids(text);
    std::copy(ids.begin(), ids.end(), input.data_ptr<std::int64_t>() + s * length);
    std::fill_n(mask.data_ptr<std::int64_t>() + s * length, ids.size(), 1);
    if (!rows.types) continue;
    auto* const type = types.data_ptr<std::int64_t>() + s * length;
    std::fill(type + texts.second(text), type + ids.size(), 1);
  }
  Batch batch{input, {}, {{"mask", mask}}};
  if (rows.types) batch.more.emplace_back("token_types", types);
  return batch;
}

LabelledTexts::LabelledTexts(TokenTexts texts, std::vector<std::int32_t> labels, TextRows rows)
    : texts_(std::move(texts)), labels_(std::move(labels)), rows_(rows) {
  if (std::ssize(labels_) != texts_.size())
    throw InvalidArgument(
        fmt::format("{} texts have {} labels; each needs one", texts_.size(), labels_.size()));
  if (texts_.longest() > rows_.context)
    throw InvalidArgument(fmt::format("a text has {} tokens and the context {}: truncate texts",
                                      texts_.longest(), rows_.context));
}

Batch LabelledTexts::get(std::span<const std::int64_t> indices) const {
  std::int64_t longest = 0;
  for (const auto index : indices) longest = std::max(longest, length(index));
  return get_padded(indices, longest);
}

Batch LabelledTexts::get_padded(std::span<const std::int64_t> indices, std::int64_t length) const {
  Batch batch = padded_texts(texts_, indices, length, rows_);
  batch.target = at::empty({std::ssize(indices)}, at::kLong);
  auto* const label = batch.target.data_ptr<std::int64_t>();
  for (std::size_t s = 0; s < indices.size(); ++s) label[s] = labels_[std::size_t(indices[s])];
  return batch;
}

}  // namespace echelon
