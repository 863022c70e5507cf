#include "echelon/data/stream.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "echelon/base/error.h"

namespace echelon {

// A call that goes on behind the one before it drops what only earlier calls needed.
void StreamDataset::drop_before(std::int64_t index) const {
  const auto drop = std::min(index - begin_, std::int64_t(kept_.size()));
  for (std::int64_t i = 0; i < drop; ++i) kept_.pop_front();
  begin_ += std::max<std::int64_t>(drop, 0);
}

Batch StreamDataset::read_one() const {
  // Reading a stream changes where it is, not what it is.
  Batch sample = const_cast<StreamDataset&>(*this).next();
  if (const auto samples = sample.samples(); samples != 1)
    throw InvalidArgument(
        fmt::format("StreamDataset::next() returned {} samples where it must return one", samples));
  return sample;
}

void StreamDataset::read_to(std::int64_t index) const {
  if (!first_.input.defined() && first_.more.empty()) {
    first_ = read_one();
    kept_.push_back(first_);
  }
  if (kept_.empty() && index > begin_) {
    const_cast<StreamDataset&>(*this).skip(index - begin_);
    begin_ = index;
  }
  while (begin_ + std::int64_t(kept_.size()) <= index) kept_.push_back(read_one());
}

Batch StreamDataset::get(std::span<const std::int64_t> indices) const {
  std::vector<Batch> samples;
  const auto [least, most] = std::minmax_element(indices.begin(), indices.end());
  if (*least > asked_) drop_before(*least);
  asked_ = *most;
  for (const auto index : indices) {
    if (index >= begin_) read_to(index);
    if (index != 0 && index < begin_)
      throw InvalidArgument(fmt::format(
          "sample {} of a stream has been passed over: the stream is at sample {}, and its samples "
          "are used in order and once",
          index, begin_ + std::int64_t(kept_.size())));
    samples.push_back(index == 0 ? first_ : kept_[std::size_t(index - begin_)]);
  }
  const auto joined = [&](auto part) {
    std::vector<at::Tensor> all;
    for (const auto& sample : samples) all.push_back(part(sample));
    return all.front().defined() ? at::cat(all) : at::Tensor();
  };
  Batch batch{joined([](const Batch& sample) { return sample.input; }),
              joined([](const Batch& sample) { return sample.target; })};
  for (const auto& [name, tensor] : samples.front().more)
    batch.more.emplace_back(name, joined([&](const Batch& sample) { return sample.at(name); }));
  return batch;
}

}  // namespace echelon
