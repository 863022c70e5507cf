// GPT-2's alphabet for bytes: a visible character for each of the 256, so that tokens of any bytes
// can be written in a JSON file. Printable bytes of Latin-1 stand for themselves, the others for
// U+0100 and up, in order: a space is "Ġ".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace echelon::tok {

const std::array<std::string, 256>& byte_characters();

// The bytes that a text in this alphabet means; nothing if it has another character.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace echelon::tok
