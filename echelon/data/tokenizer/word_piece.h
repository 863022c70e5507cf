// WordPiece (Wu et al. 2016) as BERT uses it: the longest token that begins a word, then the
// longest that continues it, and so on. A word that cannot be covered is one unknown token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "echelon/data/tokenizer/vocabulary.h"
#include "echelon/data/tokenizer/word_model.h"

namespace echelon::tok {

struct WordPieceSettings {
  std::string unknown = "[UNK]", prefix = "##";
  std::int64_t longest = 100;  // characters; longer words are unknown
};

class WordPiece : public WordModel {
 public:
  // Throws Corrupt with `where` if the vocabulary lacks the unknown token.
  WordPiece(const Vocabulary& vocabulary, const WordPieceSettings& settings,
            const std::string& where);
  void encode(std::string_view word, WordTokens& out, WordScratch& scratch) const override;

 private:
  const Vocabulary& vocabulary_;
  IdTable continuing_;  // without the prefix
  WordPieceSettings settings_;
  std::size_t longest_token_ = 0;  // bytes
  std::int32_t unknown_ = -1;
};

}  // namespace echelon::tok
