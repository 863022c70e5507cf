#include "echelon/base/bytes.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace echelon {

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array units = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0: it belongs to the next unit.
  while (value >= 1023.95 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string human_count(double count) {
  if (!std::isfinite(count)) return fmt::format("{}", count);
  if (count < 0) return "-" + human_count(-count);
  if (count < 999.5) return fmt::format("{:.3g}", count);
  constexpr std::array units = {"k", "M", "B", "T"};
  double value = count / 1000;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

}  // namespace echelon
