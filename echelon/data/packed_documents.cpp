#include "echelon/data/packed_documents.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <numeric>

namespace echelon {

struct PackedDocuments::Row {
  std::int64_t *input, *target, *mask, *positions;
};

PackedDocuments::PackedDocuments(MarkedDocuments documents, std::int64_t context)
    : documents_(std::move(documents)), context_(context) {
  const std::int64_t shared = documents_.shared_mark();
  std::int64_t end = 0;
  begins_.reserve(std::size_t(documents_.size()));
  for (std::int64_t i = 0; i < documents_.size(); ++i) {
    begins_.push_back(end);
    end += documents_.length(i) - shared;
  }
  if (end > 0) size_ = (end + shared - 1) / context_;  // the last target ends the last document
}

Batch PackedDocuments::get(std::span<const std::int64_t> indices) const {
  const auto table = [&] { return at::empty({std::ssize(indices), context_}, at::kLong); };
  Batch batch{table(), table(), {{"mask", table()}, {"positions", table()}}};
  std::int64_t row = 0;
  for (const auto index : indices) {
    const auto at = [&](const at::Tensor& tensor) {
      return tensor.data_ptr<std::int64_t>() + row * context_;
    };
    fill(index,
         {at(batch.input), at(batch.target), at(batch.more[0].second), at(batch.more[1].second)});
    ++row;
  }
  return batch;
}

void PackedDocuments::fill(std::int64_t index, const Row& row) const {
  const auto begin = index * context_;
  auto document = std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1;
  auto first = begin - begins_[std::size_t(document)];  // its token with which the row goes on
  const std::int64_t shared = documents_.shared_mark();
  std::vector<std::int64_t> tokens(std::size_t(context_) + 1);  // the inputs, and the last target
  std::int64_t at = 0, known = 0;
  for (std::int64_t number = 1; known <= context_; ++number, ++document, first = 0) {
    const auto left = documents_.length(document) - first;
    const auto count = std::min(left, context_ + 1 - at);
    documents_.read(document, first,
                    std::span(tokens).subspan(std::size_t(at), std::size_t(count)));
    known = at + count;
    const auto inputs = std::min(left - shared, context_ - at);
    std::fill_n(row.mask + at, inputs, number);
    std::iota(row.positions + at, row.positions + at + inputs, 0);
    at += inputs;
  }
  std::copy_n(tokens.begin(), context_, row.input);
  std::copy_n(tokens.begin() + 1, context_, row.target);
}

std::int64_t TruncatedDocuments::length(std::int64_t index) const {
  return std::min(documents_.length(index) - 1, context_);
}

Batch TruncatedDocuments::get(std::span<const std::int64_t> indices) const {
  std::int64_t longest = 0;
  for (const auto index : indices) longest = std::max(longest, length(index));
  return get_padded(indices, longest);
}

Batch TruncatedDocuments::get_padded(std::span<const std::int64_t> indices,
                                     std::int64_t width) const {
  const auto samples = std::ssize(indices);
  const Batch batch{at::full({samples, width}, documents_.end(), at::kLong),
                    at::full({samples, width}, -100, at::kLong)};
  std::vector<std::int64_t> tokens(std::size_t(width) + 1);
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto index = indices[std::size_t(s)], count = length(index);
    documents_.read(index, 0, std::span(tokens).first(std::size_t(count) + 1));
    std::copy_n(tokens.begin(), count, batch.input.data_ptr<std::int64_t>() + s * width);
    std::copy_n(tokens.begin() + 1, count, batch.target.data_ptr<std::int64_t>() + s * width);
  }
  return batch;
}

}  // namespace echelon
