// The text of tokens that come one at a time, as a model generates them.
//
//   TokenText text(tokenizer, prompt);
//   for (…) print(text.add(next_token));
//   print(text.rest());
//
// A token may be half of a UTF-8 character, and a tokeniser may join tokens differently once it
// knows the next one. So text is given when it is complete, and never half of a character.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

class TokenText {
 public:
  // After these tokens, whose text is known.
  TokenText(const Tokenizer& tokenizer, std::span<const std::int32_t> before)
      : tokenizer_(tokenizer), ids_(before.begin(), before.end()), shown_(ids_.size()) {
    if (shown_ > kept) drop_before(shown_ - kept);
  }

  // The text that this token completes; empty if more tokens are needed.
  std::string add(std::int32_t id);
  // What no further token will complete.
  std::string rest();

 private:
  // As context, so that tokens are joined as in the whole text.
  static constexpr std::size_t kept = 8;
  // A character has at most four bytes, and a token at least one: what is not complete after more
  // tokens never will be.
  static constexpr std::size_t longest_character = 4;

  std::string take();
  void drop_before(std::size_t count);

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;  // the last ones
  std::size_t shown_;              // of ids_, whose text was given
};

}  // namespace echelon
