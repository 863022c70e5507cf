#include "echelon/data/tokenizer/byte_alphabet.h"

#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> all;
    std::uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte)
      append_utf8(all[std::size_t(byte)], stands_for_itself(byte) ? std::uint32_t(byte) : next++);
    return all;
  }();
  return characters;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  static const auto byte_of = [] {
    std::array<std::int16_t, 0x200> bytes;
    bytes.fill(-1);
    for (int byte = 0; byte < 256; ++byte)
      bytes[decode_utf8(byte_characters()[std::size_t(byte)].data()).code_point] =
          std::int16_t(byte);
    return bytes;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const Decoded point = decode_utf8(text.data() + at);
    if (point.code_point >= byte_of.size() || byte_of[point.code_point] < 0) return std::nullopt;
    bytes.push_back(char(byte_of[point.code_point]));
    at += point.size;
  }
  return bytes;
}

}  // namespace echelon::tok
