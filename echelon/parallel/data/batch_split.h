// How a global batch is shared out among ranks of different speed.
//
// A rank that computed b of B samples contributes b/B of the mean gradient, so any shares give the
// step that even ones give, to rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace echelon {

// Samples of each rank. As even as can be, the first ranks having one more.
std::vector<std::int64_t> even_split(std::int64_t batch, int ranks);

// In the proportion of the ranks' speeds, at least `least` each: the shares for which the slowest
// rank is done first. `seconds` is what a sample takes on each rank.
std::vector<std::int64_t> split_by_speed(std::int64_t batch, const std::vector<double>& seconds,
                                         std::int64_t least);

// How long a step computes: as long as its slowest rank.
double compute_seconds(const std::vector<std::int64_t>& shares, const std::vector<double>& seconds);

// New shares, if they would take at least a tenth off the step: less is noise, and every change
// gives other bits.
std::optional<std::vector<std::int64_t>> better_split(const std::vector<std::int64_t>& shares,
                                                      const std::vector<double>& seconds,
                                                      std::int64_t least);

}  // namespace echelon
