#include "echelon/data/tokenizer/word_piece.h"

#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {

WordPiece::WordPiece(const Vocabulary& vocabulary, const WordPieceSettings& settings,
                     const std::string& where)
    : vocabulary_(vocabulary), settings_(settings), unknown_(vocabulary.find(settings.unknown)) {
  if (unknown_ < 0)
    throw Corrupt(
        fmt::format("{}: the vocabulary lacks the unknown token '{}'", where, settings.unknown));
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    if (!vocabulary.has(id) || vocabulary.find(text) != id) continue;
    longest_token_ = std::max(longest_token_, text.size());
    if (text.starts_with(settings.prefix))
      continuing_.insert(text.substr(settings.prefix.size()), id);
  }
}

void WordPiece::encode(std::string_view word, WordTokens& out, WordScratch& /*scratch*/) const {
  const auto characters =
      std::ranges::count_if(word, [](char c) { return (std::uint8_t(c) & 0xC0) != 0x80; });
  if (characters > settings_.longest) return out.push(unknown_, word.size());
  const std::size_t before = out.ids.size();
  for (std::size_t begin = 0; begin < word.size();) {
    std::size_t end = std::min(word.size(), begin + longest_token_);
    while (end < word.size() && end > begin && (std::uint8_t(word[end]) & 0xC0) == 0x80) --end;
    std::int32_t id = -1;
    while (end > begin) {
      const std::string_view piece = word.substr(begin, end - begin);
      id = begin == 0 ? vocabulary_.find(piece) : continuing_.find(piece);
      if (id >= 0) break;
      do --end;
      while (end > begin && (std::uint8_t(word[end]) & 0xC0) == 0x80);
    }
    if (id < 0) {
      out.ids.resize(before);
      out.sizes.resize(before);
      return out.push(unknown_, word.size());
    }
    out.push(id, end - begin);
    begin = end;
  }
}

}  // namespace echelon::tok
