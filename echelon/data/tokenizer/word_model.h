// What turns a word into tokens: BPE or WordPiece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace echelon::tok {

// Tokens of a word, and how many of its bytes each is.
struct WordTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> sizes;
  void clear() {
    ids.clear();
    sizes.clear();
  }
  void push(std::int32_t id, std::size_t size) {
    ids.push_back(id);
    sizes.push_back(std::uint32_t(size));
  }
};

// Memory that is used again from word to word.
struct WordScratch {
  struct Symbol {
    std::int32_t id;
    std::uint32_t size;
    std::int32_t previous, next;
  };
  struct Merge {
    std::uint32_t rank;
    std::int32_t at, id;
  };
  std::vector<Symbol> symbols;
  std::vector<Merge> merges;
  std::string text;
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of a word that is not empty. Thread-safe.
  virtual void encode(std::string_view word, WordTokens& out, WordScratch& scratch) const = 0;
  // Whether a word may be split before each U+2581 that is not behind another one, with the same
  // tokens: SentencePiece's models have whole texts as words, and spaces as this character.
  virtual bool splits_at_spaces() const { return false; }
};

}  // namespace echelon::tok
