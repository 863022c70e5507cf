// Endless random sentences for benchmarks and tests, in the form that encoders read: various
// lengths, padding, and a second text in each. Sample i is a pure function of (seed, i).
#pragma once

#include <cstdint>
#include <span>

#include "echelon/data/dataset.h"

namespace echelon {

class RandomSentences : public Dataset {
 public:
  // What is to be learnt of a sentence: one of `labels` (that of its first token), or a share of
  // its words, which are masked.
  struct Goal {
    std::int64_t labels = 0;
    double masked = 0;
  };

  RandomSentences(std::int64_t vocab, std::int64_t length, std::uint64_t seed, Goal goal)
      : vocab_(vocab), length_(length), seed_(seed), goal_(goal) {}

  std::int64_t size() const override { return std::int64_t{1} << 40; }
  // "input", "mask" and "token_types" of [samples, length], and the target: labels, or words with
  // -100 for those that are not masked.
  Batch get(std::span<const std::int64_t> indices) const override;
  std::int64_t targets(std::int64_t index) const override;

 private:
  std::int64_t words(std::int64_t index) const;  // at least half of the length

  std::int64_t vocab_, length_;
  std::uint64_t seed_;
  Goal goal_;
};

}  // namespace echelon
