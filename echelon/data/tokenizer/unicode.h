// What a code point is to a tokeniser. The classes are those of the libraries that `tokenizers`
// uses, each of its own version of Unicode; tests/tools/unicode_table.py made the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace echelon::tok {

enum UnicodeClass : std::uint16_t {
  letter = 1 << 0,       // \p{L} in patterns
  number = 1 << 1,       // \p{N} in patterns
  space = 1 << 2,        // White_Space; also \s in patterns
  punctuation = 1 << 3,  // BERT's: categories P, and all of ASCII's symbols
  numeric = 1 << 4,      // for the pre-tokeniser Digits
  word = 1 << 5,         // \w of the pre-tokeniser Whitespace and of single words
  accent = 1 << 6,       // what BERT strips: category Mn
  control = 1 << 7,      // what BERT removes: U+FFFD and controls, but tabs and ends of lines
  combining = 1 << 8,    // what StripAccents removes: categories M
  has_forms = 1 << 9,    // decomposes, or its combining class is not 0
  recent = 1 << 10,      // newer than Unicode 14
};

struct CasePair {
  std::uint32_t upper, lower;
};

// Code points that are newer than Unicode 14, and an older one of the same category and size.
struct StandIn {
  std::uint32_t first, last, instead;
};

constexpr std::size_t unicode_runs = 2928, unicode_new_cases = 55, unicode_stand_ins = 127;
// Each run of equal code points: the first << 11 | its classes.
extern const std::array<std::uint32_t, unicode_runs> unicode_run_table;
// Lower case of what is newer than Unicode 14.
extern const std::array<CasePair, unicode_new_cases> unicode_new_case_table;
extern const std::array<StandIn, unicode_stand_ins> unicode_stand_in_table;

// The table as two stages, made at first use.
class UnicodeClasses {
 public:
  static const UnicodeClasses& get();
  std::uint16_t of(std::uint32_t code_point) const {
    return rows_[std::size_t(row_of_[code_point >> 8]) << 8 | (code_point & 255)];
  }
  bool has(std::uint32_t code_point, int classes) const { return of(code_point) & classes; }

 private:
  UnicodeClasses();
  std::array<std::uint16_t, 0x1100> row_of_{};
  std::vector<std::uint16_t> rows_;
};

// The code point at the beginning of valid UTF-8 and its length in bytes.
struct Decoded {
  std::uint32_t code_point;
  std::uint32_t size;
};

inline Decoded decode_utf8(const char* at) {
  const auto byte = [&](int i) { return std::uint32_t(std::uint8_t(at[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// The code point that ends before `end`, which is not the beginning.
inline Decoded decode_utf8_before(const char* end) {
  const char* at = end - 1;
  while ((std::uint8_t(*at) & 0xC0) == 0x80) --at;
  return decode_utf8(at);
}

inline std::uint32_t utf8_size(std::uint32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

// Whether the text is ASCII only.
bool is_ascii(std::string_view text);

}  // namespace echelon::tok
