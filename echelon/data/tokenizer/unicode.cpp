#include "echelon/data/tokenizer/unicode.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace echelon::tok {

UnicodeClasses::UnicodeClasses() {
  std::map<std::array<std::uint16_t, 256>, std::uint16_t> known;
  std::array<std::uint16_t, 256> row{};
  std::size_t run = 0;
  for (std::uint32_t point = 0; point < 0x110000; ++point) {
    if (run + 1 < unicode_runs && unicode_run_table[run + 1] >> 11 <= point) ++run;
    row[point & 255] = unicode_run_table[run] & 0x7FF;
    if ((point & 255) != 255) continue;
    const auto [found, added] = known.try_emplace(row, std::uint16_t(known.size()));
    if (added) rows_.insert(rows_.end(), row.begin(), row.end());
    row_of_[point >> 8] = found->second;
  }
}

const UnicodeClasses& UnicodeClasses::get() {
  static const UnicodeClasses classes;
  return classes;
}

bool is_ascii(std::string_view text) {
  std::size_t at = 0;
  for (std::uint64_t eight = 0; at + sizeof(eight) <= text.size(); at += sizeof(eight)) {
    std::memcpy(&eight, text.data() + at, sizeof(eight));
    if (eight & 0x8080808080808080) return false;
  }
  return std::all_of(text.begin() + std::ptrdiff_t(at), text.end(),
                     [](char c) { return std::uint8_t(c) < 0x80; });
}

}  // namespace echelon::tok
