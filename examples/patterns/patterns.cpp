#include "patterns/patterns.h"

#include <ATen/ops/empty.h>

#include <cstddef>

namespace {

// A pattern is half as wide as the image, has pixels of -1 and 1, and is placed on a grid of
// quarters.
constexpr std::int64_t width = Patterns::side / 2, quarter = Patterns::side / 4,
                       places = (Patterns::side - width) / quarter + 1;
constexpr double noise = 1.0;  // standard deviation of a pixel

}  // namespace

Patterns::Patterns(std::uint64_t seed, std::uint64_t series)
    : series_(series),
      pixels_(echelon::derive_key(seed, "pixels of patterns")),
      places_(echelon::derive_key(seed, "places of patterns")),
      noise_(echelon::derive_key(seed, "noise around patterns") + series) {}

echelon::Batch Patterns::get(std::span<const std::int64_t> indices) const {
  const auto samples = static_cast<std::int64_t>(indices.size());
  echelon::Batch batch{at::empty({samples, 1, side, side}, at::kFloat),
                       at::empty({samples}, at::kLong)};
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto index = static_cast<std::uint64_t>(indices[static_cast<std::size_t>(s)]);
    float* const image = batch.input.data_ptr<float>() + s * side * side;
    echelon::fill_normal(noise_, index * side * side, std::span(image, side * side), 0, noise);
    const auto draw = echelon::philox(places_, index, series_);
    const std::int64_t shown = draw[0] % classes, top = draw[1] % places * quarter,
                       left = draw[2] % places * quarter;
    batch.target.data_ptr<std::int64_t>()[s] = shown;
    for (std::int64_t y = 0; y < width; ++y) {
      const auto row = echelon::philox(pixels_, static_cast<std::uint64_t>(shown * width + y))[0];
      for (std::int64_t x = 0; x < width; ++x)
        image[(top + y) * side + left + x] += (row >> x & 1) != 0 ? 1.0F : -1.0F;
    }
  }
  return batch;
}
