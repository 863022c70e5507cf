#include "echelon/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/random.h"

namespace echelon {
namespace {

constexpr std::int64_t most_weight = 1'000'000'000;
constexpr auto most = std::numeric_limits<std::int64_t>::max();

std::int64_t shuffled(Key key, std::int64_t position, std::int64_t n) {
  return std::int64_t(permute(key, std::uint64_t(position), std::uint64_t(n)));
}

// Returns the sum of the weights.
std::int64_t check_parts(const std::vector<Dataset::Part>& parts, std::int64_t size) {
  std::int64_t begin = 0, weights = 0;
  for (const auto& part : parts) {
    if (part.first != begin || part.samples < 1 || part.samples > size - begin)
      throw InvalidArgument(fmt::format(
          "the parts of a mixture must follow each other and cover all {} samples: one is {} "
          "samples from {} on, where {} is the next",
          size, part.samples, part.first, begin));
    if (part.weight < 1 || part.weight > most_weight - weights)
      throw InvalidArgument(fmt::format(
          "the weights of a mixture must be at least 1 and add up to at most {}: one is {}",
          most_weight, part.weight));
    begin += part.samples;
    weights += part.weight;
  }
  if (!parts.empty() && begin != size)
    throw InvalidArgument(
        fmt::format("the parts of a mixture cover {} of its {} samples", begin, size));
  return weights;
}

}  // namespace

Sampler::Sampler(std::uint64_t seed, const Dataset& data, std::int64_t global_batch,
                 std::int64_t sorted_together)
    : seed_(seed),
      size_(data.size()),
      batch_(global_batch),
      variants_(data.variants()),
      in_sequence_(data.in_sequence()),
      parts_(data.parts()) {
  if (variants_ < 1 || size_ > most / variants_)
    throw InvalidArgument(
        fmt::format("a dataset of {} samples cannot have {} variants of each", size_, variants_));
  if (in_sequence_ && (variants_ > 1 || !parts_.empty()))
    throw InvalidArgument("samples in sequence have no variants and no parts");
  cycle_ = check_parts(parts_, size_);
  if (!in_sequence_ && size_ > 0 && data.length(0) > 0) data_ = &data;
  // Two epochs in one group would put two copies of a sample, which are equally long, into a batch.
  const auto an_epoch = std::max<std::int64_t>(1, size_ / std::max<std::int64_t>(1, batch_));
  sorted_together_ = std::clamp<std::int64_t>(sorted_together, 1, an_epoch);
}

// The sample that is drawn as number `number`, counted from the first step on.
std::int64_t Sampler::draw(std::int64_t number) const {
  if (in_sequence_) return number % size_;
  if (!parts_.empty()) return draw_from_part(number);
  const std::int64_t epoch = number / size_;
  const Key key = derive_key(seed_, "sample order of epoch " + std::to_string(epoch));
  return shuffled(key, number % size_, size_) + epoch % variants_ * size_;
}

// A cycle is a permutation of 0 … the sum of all weights, of which each part has a range as long as
// its weight. So each part is drawn from exactly as often as its weight in every cycle, and the
// place in the range says which of its draws this is.
std::int64_t Sampler::draw_from_part(std::int64_t number) const {
  const std::int64_t cycle = number / cycle_;
  auto place = shuffled(derive_key(seed_, "parts of cycle " + std::to_string(cycle)),
                        number % cycle_, cycle_);
  std::size_t which = 0;
  while (place >= parts_[which].weight) place -= parts_[which++].weight;
  const auto& part = parts_[which];
  const std::int64_t drawn = cycle * part.weight + place, epoch = drawn / part.samples;
  const Key key = derive_key(seed_, fmt::format("sample order of part {}, epoch {}", which, epoch));
  return part.first + shuffled(key, drawn % part.samples, part.samples) + epoch % variants_ * size_;
}

// Which samples are in a batch is decided by their lengths; their places in it are random, so that
// ranks and micro-batches get long and short ones alike.
std::int64_t Sampler::sorted_index(std::int64_t step, std::int64_t place) const {
  const std::int64_t group = step / sorted_together_;
  const auto batch = shuffled(derive_key(seed_, "batches of group " + std::to_string(group)),
                              step % sorted_together_, sorted_together_);
  const auto in_batch =
      shuffled(derive_key(seed_, "places of step " + std::to_string(step)), place, batch_);
  const std::lock_guard lock(mutex_);
  if (group != group_) sort_group(group);
  return sorted_[std::size_t(batch * batch_ + in_batch)];
}

void Sampler::sort_group(std::int64_t group) const {
  const std::int64_t draws = sorted_together_ * batch_;
  std::vector<std::pair<std::int64_t, std::int64_t>> drawn;  // length and index
  drawn.reserve(std::size_t(draws));
  for (std::int64_t i = 0; i < draws; ++i) {
    const auto index = draw(group * draws + i);
    drawn.emplace_back(data_->length(index), index);
  }
  std::stable_sort(drawn.begin(), drawn.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  sorted_.clear();
  for (const auto& [length, index] : drawn) sorted_.push_back(index);
  group_ = group;
}

std::int64_t Sampler::index(std::int64_t step, std::int64_t place) const {
  return data_ && sorted_together_ > 1 ? sorted_index(step, place) : draw(step * batch_ + place);
}

std::vector<std::int64_t> Sampler::indices(std::int64_t step, std::int64_t begin,
                                           std::int64_t end) const {
  std::vector<std::int64_t> all;
  all.reserve(static_cast<std::size_t>(end - begin));
  for (auto place = begin; place < end; ++place) all.push_back(index(step, place));
  return all;
}

std::int64_t Sampler::longest(std::int64_t step) const {
  std::int64_t longest = 0;
  if (data_)
    for (std::int64_t place = 0; place < batch_; ++place)
      longest = std::max(longest, data_->length(index(step, place)));
  return longest;
}

}  // namespace echelon
