#include "echelon/parallel/data/batch_split.h"

#include <algorithm>
#include <numeric>

namespace echelon {
namespace {

constexpr double worth_it = 0.9;  // of the present step time

}  // namespace

std::vector<std::int64_t> even_split(std::int64_t batch, int ranks) {
  std::vector<std::int64_t> shares(std::size_t(ranks), batch / ranks);
  for (std::int64_t r = 0; r < batch % ranks; ++r) ++shares[std::size_t(r)];
  return shares;
}

// Gives each sample to the rank that would then finish first. This is optimal for the slowest rank,
// because all samples take the same time.
std::vector<std::int64_t> split_by_speed(std::int64_t batch, const std::vector<double>& seconds,
                                         std::int64_t least) {
  std::vector<std::int64_t> shares(seconds.size(), least);
  for (auto left = batch - least * std::ssize(seconds); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t r = 1; r < shares.size(); ++r)
      if (double(shares[r] + 1) * seconds[r] < double(shares[best] + 1) * seconds[best]) best = r;
    ++shares[best];
  }
  return shares;
}

double compute_seconds(const std::vector<std::int64_t>& shares,
                       const std::vector<double>& seconds) {
  double longest = 0;
  for (std::size_t r = 0; r < shares.size(); ++r)
    longest = std::max(longest, double(shares[r]) * seconds[r]);
  return longest;
}

std::optional<std::vector<std::int64_t>> better_split(const std::vector<std::int64_t>& shares,
                                                      const std::vector<double>& seconds,
                                                      std::int64_t least) {
  const auto batch = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  auto better = split_by_speed(batch, seconds, least);
  if (compute_seconds(better, seconds) > worth_it * compute_seconds(shares, seconds)) return {};
  return better;
}

}  // namespace echelon
