// How a global batch is split over ranks of different speed.
//
// A rank that computes b of B samples contributes b/B of the mean gradient, so every split gives
// the same step as an even split, to rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace echelon {

// Samples per rank, as even as possible: the first ranks take the remainder, one sample each.
std::vector<std::int64_t> even_split(std::int64_t batch, int ranks);

// Samples per rank, in proportion to the ranks' speeds and at least `least` each. This split
// minimises the time of the slowest rank. `seconds` is the time per sample on each rank.
std::vector<std::int64_t> split_by_speed(std::int64_t batch, const std::vector<double>& seconds,
                                         std::int64_t least);

// The compute time of a step: the time of its slowest rank.
double compute_seconds(const std::vector<std::int64_t>& shares, const std::vector<double>& seconds);

// A new split, if it would shorten the step by at least a tenth. Smaller gains are noise, and every
// change of the split changes the rounding.
std::optional<std::vector<std::int64_t>> better_split(const std::vector<std::int64_t>& shares,
                                                      const std::vector<double>& seconds,
                                                      std::int64_t least);

}  // namespace echelon
