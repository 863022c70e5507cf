#include "echelon/data/sampler.h"

#include <string>

#include "echelon/base/random.h"

namespace echelon {

std::int64_t Sampler::index(std::int64_t step, std::int64_t place) const {
  const std::int64_t drawn = step * batch_ + place;
  const auto position = static_cast<std::uint64_t>(drawn % samples_);
  const Key key = derive_key(seed_, "sample order of epoch " + std::to_string(drawn / samples_));
  return static_cast<std::int64_t>(permute(key, position, static_cast<std::uint64_t>(samples_)));
}

std::vector<std::int64_t> Sampler::indices(std::int64_t step, std::int64_t begin,
                                           std::int64_t end) const {
  std::vector<std::int64_t> all;
  all.reserve(static_cast<std::size_t>(end - begin));
  for (auto place = begin; place < end; ++place) all.push_back(index(step, place));
  return all;
}

}  // namespace echelon
