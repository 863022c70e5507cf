#include "echelon/base/utf8.h"

#include <cstring>

namespace echelon {
namespace {

bool in(std::uint8_t byte, int least, int most) { return byte >= least && byte <= most; }

// The length of the well-formed sequence at the beginning of `at`, by table 3-7 of the Unicode
// standard; 0 if there is none.
std::size_t sequence(const std::uint8_t* at, std::size_t left) {
  const std::uint8_t lead = at[0];
  if (lead < 0x80) return 1;
  const std::size_t size = in(lead, 0xC2, 0xDF)   ? 2
                           : in(lead, 0xE0, 0xEF) ? 3
                           : in(lead, 0xF0, 0xF4) ? 4
                                                  : 0;
  if (size == 0 || size > left) return 0;
  // The second byte's range excludes overlong forms, surrogates and what is above U+10FFFF.
  const int least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const int most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (!in(at[1], least, most)) return 0;
  for (std::size_t i = 2; i < size; ++i)
    if (!in(at[i], 0x80, 0xBF)) return 0;
  return size;
}

}  // namespace

std::size_t utf8_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    while (at + sizeof(eight) <= text.size()) {  // ASCII, eight bytes at a time
      std::memcpy(&eight, bytes + at, sizeof(eight));
      if (eight & 0x8080808080808080) break;
      at += sizeof(eight);
    }
    if (at == text.size()) break;
    const auto size = sequence(bytes + at, text.size() - at);
    if (size == 0) return at;
    at += size;
  }
  return at;
}

void append_utf8(std::string& text, std::uint32_t code_point) {
  const auto continuation = [&](int shift) {
    text.push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)));
  };
  if (code_point < 0x80) {
    text.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    text.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    continuation(0);
  } else if (code_point < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    continuation(6);
    continuation(0);
  } else {
    text.push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

}  // namespace echelon
