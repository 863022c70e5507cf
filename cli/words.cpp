#include "cli/words.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "echelon/base/error.h"

namespace echelon::cli {
namespace {

// By RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xC2 && first < 0xE0 ? 2
                               : first >= 0xE0 && first < 0xF0 ? 3
                               : first >= 0xF0 && first < 0xF5 ? 4
                                                               : 0;
    if (length == 0 || at + length > text.size()) return false;
    std::uint32_t code = length == 1 ? first : first & (0x7F >> length);
    for (std::size_t i = 1; i < length; ++i) {
      if ((byte(at + i) & 0xC0) != 0x80) return false;
      code = code << 6 | (byte(at + i) & 0x3F);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) return false;
    at += length;
  }
  return true;
}

}  // namespace

void require_words(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i], before = argv[i - 1];
    if (before == "--prompt" || word.starts_with("--prompt=")) continue;
    if (!is_utf8(word))
      throw InvalidArgument(fmt::format(
          "word {} of the command line ({:?}) is not UTF-8; rename the file or choose another value",
          i, word));
    const bool assigned =
        word.starts_with("--") && word.ends_with('=') && word.find('=') == word.size() - 1;
    if (!word.empty() && !assigned) continue;
    const std::string_view option = assigned                   ? word.substr(0, word.size() - 1)
                                    : before.starts_with("--") ? before
                                                               : std::string_view();
    throw InvalidArgument(
        option.empty()
            ? fmt::format("word {} of the command line is empty; leave it out, or check whether a "
                          "shell variable is unset",
                          i)
            : fmt::format("{} needs a value, but an empty one was given; leave it out, or check "
                          "whether a shell variable is unset",
                          option));
  }
}

}  // namespace echelon::cli
