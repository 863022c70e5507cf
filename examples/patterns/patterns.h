// Images for a classifier: noise, with one of a few patterns somewhere in it. Image i is a pure
// function of the seed, the series and i, so every rank makes its own and nothing is stored.
#pragma once

#include <echelon/base/random.h>
#include <echelon/data/dataset.h>

#include <cstdint>
#include <span>

class Patterns : public echelon::Dataset {
 public:
  static constexpr std::int64_t classes = 8, side = 16;  // images are [1, side, side]

  // The patterns depend on the seed only; another series has other images of the same patterns.
  Patterns(std::uint64_t seed, std::uint64_t series);

  std::int64_t size() const override { return 1 << 20; }
  echelon::Batch get(
      std::span<const std::int64_t> indices) const override;  // target: the pattern's index

 private:
  std::uint64_t series_;
  echelon::Key pixels_, places_, noise_;
};
