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

namespace {

// Three digits, in the largest unit that leaves at least 1 before the point.
template <std::size_t n>
std::string three_digits(double value, const std::array<const char*, n>& units) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < n) {
    value /= 1000;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, units[unit]);
}

}  // namespace

std::string human_rate(double bytes_a_second) {
  return three_digits(bytes_a_second, std::array{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"});
}

std::string human_seconds(double seconds) {
  return three_digits(seconds * 1e9, std::array{"ns", "us", "ms", "s"});
}

std::string human_age(double seconds) {
  const auto several = [](double number, const char* unit) {
    const auto whole = static_cast<std::int64_t>(number);
    return fmt::format("{} {}{}", whole, unit, whole == 1 ? "" : "s");
  };
  if (seconds < 1) return "less than a second";
  if (seconds < 60) return several(seconds, "second");
  if (seconds < 3600) return several(seconds / 60, "minute");
  if (seconds < 48 * 3600.0) return several(seconds / 3600, "hour");
  return several(seconds / 86400, "day");
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
