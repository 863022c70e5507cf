// UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace echelon {

// The number of bytes before the first that is not UTF-8; the size of the text if all of it is.
std::size_t utf8_prefix(std::string_view text);

// Appends a code point. It must be at most 0x10FFFF and no surrogate.
void append_utf8(std::string& text, std::uint32_t code_point);

}  // namespace echelon
