#include "echelon/data/dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/base/random.h"

namespace echelon {

Batch Dataset::get_padded(std::span<const std::int64_t> /*indices*/,
                          std::int64_t /*length*/) const {
  throw InvalidArgument(
      "the dataset has samples of different lengths (Dataset::length) and does not say how to pad "
      "them: implement Dataset::get_padded");
}

TensorDataset::TensorDataset(at::Tensor inputs, at::Tensor targets)
    : inputs_(std::move(inputs)), targets_(std::move(targets)) {
  if (inputs_.dim() == 0 || targets_.dim() == 0 || inputs_.size(0) != targets_.size(0) ||
      inputs_.size(0) == 0) {
    throw InvalidArgument(
        fmt::format("inputs {} and targets {} must have the same first dimension, one row a sample",
                    fmt::join(inputs_.sizes(), "x"), fmt::join(targets_.sizes(), "x")));
  }
}

Batch TensorDataset::get(std::span<const std::int64_t> indices) const {
  at::Tensor rows = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), rows.data_ptr<std::int64_t>());
  return {inputs_.index_select(0, rows), targets_.index_select(0, rows)};
}

Batch RandomTokens::get(std::span<const std::int64_t> indices) const {
  const auto samples = static_cast<std::int64_t>(indices.size());
  Batch batch{at::empty({samples, length_}, at::kLong), at::empty({samples, length_}, at::kLong)};
  const Key key = derive_key(seed_, "random tokens");
  const auto token = [&](std::int64_t sample, std::int64_t i) {
    const auto word =
        philox(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(sample))[0];
    return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(vocab_)) >>
                                     32);
  };
  for (std::int64_t s = 0; s < samples; ++s) {
    auto* const input = batch.input.data_ptr<std::int64_t>() + s * length_;
    auto* const target = batch.target.data_ptr<std::int64_t>() + s * length_;
    const auto index = indices[static_cast<std::size_t>(s)];
    for (std::int64_t i = 0; i < length_; ++i) input[i] = token(index, i);
    std::copy(input + 1, input + length_, target);
    target[length_ - 1] = token(index, length_);
  }
  return batch;
}

}  // namespace echelon
