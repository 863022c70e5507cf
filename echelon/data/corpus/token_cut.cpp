#include "echelon/data/corpus/token_cut.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace echelon {

TextCut cut_for(const Tokenizer& tokenizer) {
  constexpr std::size_t around = 256, most_tries = 64;
  const auto within = [](std::string_view text, std::size_t at) {
    while (at < text.size() && (std::uint8_t(text[at]) & 0xC0) == 0x80) ++at;  // not in a character
    return at;
  };
  return [=](std::string_view text) -> std::size_t {
    std::vector<std::int32_t> whole, parts;
    std::size_t tries = 0;
    // Some text must follow: the tokens after a cut may depend on all of a word.
    for (auto at = text.size() - std::min(text.size(), around); at > 1 && tries < most_tries;) {
      at = text.find_last_of(" \n", at - 1);
      if (at == text.npos || at == 0) return 0;
      if (text[at - 1] == ' ' || text[at - 1] == '\n') continue;
      const auto begin = within(text, at - std::min(at, around)), end = within(text, at + around);
      whole.clear();
      parts.clear();
      tokenizer.append(text.substr(begin, end - begin), whole, /*continues=*/true);
      tokenizer.append(text.substr(begin, at - begin), parts, /*continues=*/true);
      tokenizer.append(text.substr(at, end - at), parts, /*continues=*/true);
      if (whole == parts) return at;
      ++tries;
    }
    return 0;
  };
}

}  // namespace echelon
