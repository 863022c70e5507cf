#include "echelon/data/mixture.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {
namespace {

// The batch of the rows of `parts`, one after another, in the order of `rows`.
Batch joined(const std::vector<Batch>& parts, const at::Tensor& rows) {
  const auto join = [&](auto tensor_of) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : parts) tensors.push_back(tensor_of(part));
    return tensors.front().defined() ? at::cat(tensors).index_select(0, rows) : at::Tensor();
  };
  Batch batch{join([](const Batch& part) { return part.input; }),
              join([](const Batch& part) { return part.target; })};
  for (const auto& [name, tensor] : parts.front().more)
    batch.more.emplace_back(name, join([&](const Batch& part) { return part.at(name); }));
  return batch;
}

// Whether two batches have the same names, types and sizes, in any order.
bool alike(const Batch& a, const Batch& b) {
  std::int64_t tensors = 0;
  bool same = true;
  a.each([&](std::string_view name, const at::Tensor& tensor) {
    const at::Tensor* const other = b.find(name);
    same = same && other && other->defined() && other->scalar_type() == tensor.scalar_type() &&
           other->sizes() == tensor.sizes();
    ++tensors;
  });
  b.each([&](std::string_view, const at::Tensor&) { --tensors; });
  return same && tensors == 0;
}

// Throws InvalidArgument unless rows of all sources can be joined: a tensor that only some of them
// have would be dropped or missing, depending on the batch.
void require_alike(const std::vector<Mixture::Source>& sources) {
  constexpr std::int64_t first[] = {0};
  std::int64_t length = 0;
  for (const auto& source : sources) length = std::max(length, source.data->length(0));
  const auto sample = [&](const Dataset& data) {
    return length > 0 ? data.get_padded(first, length) : data.get(first);
  };
  const Batch expected = sample(*sources.front().data);
  for (std::size_t i = 1; i < sources.size(); ++i)
    if (const Batch other = sample(*sources[i].data); !alike(expected, other))
      throw InvalidArgument(fmt::format(
          "the datasets of a mixture must have the same tensors: sample 0 of the first has {}, and "
          "that of number {} has {}",
          expected.description(), i + 1, other.description()));
}

}  // namespace

Mixture::Mixture(std::vector<Source> sources) : sources_(std::move(sources)) {
  if (sources_.empty()) throw InvalidArgument("a mixture needs at least one dataset");
  for (const auto& [data, weight] : sources_) {
    if (data->size() < 1 || data->in_sequence() || !data->parts().empty())
      throw InvalidArgument(
          "a mixture is made of datasets with samples of their own: not of empty ones, streams or "
          "mixtures");
    const auto has = [](const Dataset& one) {
      return std::pair(one.length(0) > 0, one.targets(0) > 0);
    };
    if (has(*data) != has(*sources_.front().data))
      throw InvalidArgument(
          "the datasets of a mixture must all have lengths and targets of samples, or none");
    parts_.push_back({size_, data->size(), weight});
    size_ += data->size();
    variants_ = std::max(variants_, data->variants());
  }
  require_alike(sources_);
}

Mixture::Place Mixture::place_of(std::int64_t index) const {
  const auto sample = index % size_, variant = index / size_;
  std::size_t which = parts_.size() - 1;
  while (parts_[which].first > sample) --which;
  const Dataset& data = *sources_[which].data;
  return {which, sample - parts_[which].first + variant % data.variants() * data.size()};
}

Batch Mixture::get(std::span<const std::int64_t> indices) const {
  std::int64_t longest = 0;
  for (const auto index : indices) longest = std::max(longest, length(index));
  return get_padded(indices, longest);
}

Batch Mixture::get_padded(std::span<const std::int64_t> indices, std::int64_t length) const {
  std::vector<std::vector<std::int64_t>> of_source(sources_.size()), places(sources_.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto [source, index] = place_of(indices[i]);
    of_source[source].push_back(index);
    places[source].push_back(std::int64_t(i));
  }
  std::vector<Batch> parts;
  at::Tensor rows = at::empty({std::int64_t(indices.size())}, at::kLong);
  std::int64_t row = 0;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (of_source[s].empty()) continue;
    const Dataset& data = *sources_[s].data;
    parts.push_back(length > 0 ? data.get_padded(of_source[s], length) : data.get(of_source[s]));
    for (const auto place : places[s]) rows.data_ptr<std::int64_t>()[place] = row++;
  }
  return joined(parts, rows);
}

std::int64_t Mixture::targets(std::int64_t index) const {
  const auto [source, of_it] = place_of(index);
  return sources_[source].data->targets(of_it);
}

std::int64_t Mixture::length(std::int64_t index) const {
  const auto [source, of_it] = place_of(index);
  return sources_[source].data->length(of_it);
}

std::int64_t Mixture::max_length() const {
  std::int64_t most = 0;
  for (const auto& source : sources_) {
    if (source.data->max_length() == 0) return 0;
    most = std::max(most, source.data->max_length());
  }
  return most;
}

bool Mixture::concurrent() const {
  return std::all_of(sources_.begin(), sources_.end(),
                     [](const Source& one) { return one.data->concurrent(); });
}

}  // namespace echelon
