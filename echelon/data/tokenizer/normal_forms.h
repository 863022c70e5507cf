// Lower case and the normal forms of Unicode, one code point at a time, from utf8proc. A build
// without that library (has_normal_forms is false) refuses tokenisers that need them.
#pragma once

#include <array>
#include <cstdint>

namespace echelon::tok {

extern const bool has_normal_forms;

// A code point's decomposition, fully applied: U+FDFA has the longest, of 18 code points.
struct Decomposition {
  std::array<std::uint32_t, 20> points;
  int size;
};

Decomposition decompose(std::uint32_t code_point, bool compatible);
int combining_class(std::uint32_t code_point);
// The canonical composition of two; 0 if there is none.
std::uint32_t compose(std::uint32_t first, std::uint32_t second);
// Unconditional, one to one: U+0130 is the one exception, and its caller's concern.
std::uint32_t lower_case(std::uint32_t code_point);

}  // namespace echelon::tok
