// Images to try a classifier on: noise, and somewhere in it one of a few patterns. Image i is a
// pure function of the seed, the series and i, so every rank makes its own and nothing is stored.
#pragma once

#include <echelon/base/random.h>
#include <echelon/data/dataset.h>

#include <cstdint>
#include <span>

class Patterns : public echelon::Dataset {
 public:
  static constexpr std::int64_t classes = 8, side = 16;  // images are [1, side, side]

  // The patterns are the seed's alone; another series has other images of the same.
  Patterns(std::uint64_t seed, std::uint64_t series);

  std::int64_t size() const override { return 1 << 20; }
  echelon::Batch get(std::span<const std::int64_t> indices) const override;  // target: which one

 private:
  std::uint64_t series_;
  echelon::Key pixels_, places_, noise_;
};
