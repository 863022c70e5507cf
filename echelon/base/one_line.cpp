#include "echelon/base/one_line.h"

#include <fmt/format.h>

namespace echelon {

std::string one_line(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (c == '\n')
      shown += "\\n";
    else if (c == '\t')
      shown += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      shown += fmt::format("\\x{:02x}", byte);
    else if (byte == 0xc2 && next >= 0x80 && next < 0xa0)  // U+0080 to U+009F, in UTF-8
      shown += fmt::format("\\x{:02x}", (++i, next));
    else
      shown += c;
  }
  return shown;
}

}  // namespace echelon
