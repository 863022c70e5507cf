#include "echelon/job/chaos.h"

#include <fmt/format.h>

#include <charconv>

#include "echelon/base/error.h"

namespace echelon {

double ChaosOptions::slowness(int rank, int ranks) const {
  double factor = 1;
  for (const auto& one : slow) {
    int who = -1;
    double times = 0;
    const char* const end = one.data() + one.size();
    const auto [colon, no_rank] = std::from_chars(one.data(), end, who);
    const bool separated = no_rank == std::errc() && colon != end && *colon == ':';
    const auto [rest, no_factor] =
        separated ? std::from_chars(colon + 1, end, times) : std::from_chars(end, end, times);
    if (!separated || no_factor != std::errc() || rest != end || who < 0 || !(times >= 1) ||
        times > 1000)
      throw InvalidArgument(fmt::format(
          "chaos.slow has \"{}\"; give RANK:FACTOR with a factor from 1 to 1000, as in 1:3.0",
          one));
    if (who >= ranks)
      throw InvalidArgument(fmt::format("chaos.slow has \"{}\", but the job has {} rank{}", one,
                                        ranks, ranks == 1 ? "" : "s"));
    if (who == rank) factor = times;
  }
  return factor;
}

}  // namespace echelon
