// The samples of a step: a pure function of (seed, step, place in the global batch). Nothing is
// stored that matters, so any number of ranks draws the same global batch, and a resumed run
// continues with the next samples.
//
// Samples are drawn one after another, and each sample once per epoch, in another order each epoch.
// A dataset with parts (a mixture) is drawn from in cycles of as many samples as the weights add up
// to; each part has its own epochs. A stream is drawn from in its own order.
//
// Where samples differ in length, the draws of `sorted_together` steps are sorted by length and cut
// into batches, which follow each other in random order; so a batch has samples of about one length
// and little padding. A group of steps is at most an epoch; where it reaches into the next one,
// draws of both are sorted together.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "echelon/data/dataset.h"

namespace echelon {

class Sampler {
 public:
  // Of samples that are alike.
  Sampler(std::uint64_t seed, std::int64_t samples, std::int64_t global_batch)
      : seed_(seed), size_(samples), batch_(global_batch) {}
  // Of the samples that the dataset describes; it must outlive the sampler. Throws InvalidArgument
  // if the description contradicts itself.
  Sampler(std::uint64_t seed, const Dataset& data, std::int64_t global_batch,
          std::int64_t sorted_together = 1);

  std::int64_t index(std::int64_t step, std::int64_t place) const;

  // The indices of places [begin, end) of a step's global batch.
  std::vector<std::int64_t> indices(std::int64_t step, std::int64_t begin, std::int64_t end) const;

  // The tokens of the longest sample of a step's global batch; 0 if all samples are alike.
  std::int64_t longest(std::int64_t step) const;

 private:
  std::int64_t draw(std::int64_t number) const;
  std::int64_t draw_from_part(std::int64_t number) const;
  std::int64_t sorted_index(std::int64_t step, std::int64_t place) const;
  void sort_group(std::int64_t group) const;

  std::uint64_t seed_;
  std::int64_t size_, batch_;
  std::int64_t variants_ = 1;
  bool in_sequence_ = false;
  std::vector<Dataset::Part> parts_ = {};
  std::int64_t cycle_ = 0;         // the sum of the weights of all parts
  const Dataset* data_ = nullptr;  // null: samples are alike
  std::int64_t sorted_together_ = 1;

  // The group of steps that was sorted last: its indices, batch after batch. A cache.
  mutable std::mutex mutex_ = {};
  mutable std::int64_t group_ = -1;
  mutable std::vector<std::int64_t> sorted_ = {};
};

}  // namespace echelon
