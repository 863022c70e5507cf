// The samples of a step: a pure function of (seed, step, place in the global batch). Nothing is
// stored, so any number of ranks draws the same global batch, and a resumed run continues with the
// next samples. Every sample is drawn once per epoch, in another order each epoch.
#pragma once

#include <cstdint>
#include <vector>

namespace echelon {

class Sampler {
 public:
  Sampler(std::uint64_t seed, std::int64_t samples, std::int64_t global_batch)
      : seed_(seed), samples_(samples), batch_(global_batch) {}

  std::int64_t index(std::int64_t step, std::int64_t place) const;

  // The indices of places [begin, end) of a step's global batch.
  std::vector<std::int64_t> indices(std::int64_t step, std::int64_t begin, std::int64_t end) const;

 private:
  std::uint64_t seed_;
  std::int64_t samples_, batch_;
};

}  // namespace echelon
