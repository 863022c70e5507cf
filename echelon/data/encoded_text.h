// Plain text as tokens of a tokeniser.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/data/token_texts.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

// All of a text as one sequence of tokens, without special ones. It is encoded in parts on several
// threads, with the tokens of the whole (token_cut.h). Throws InvalidArgument that names `source`
// unless the text is UTF-8.
std::vector<std::int32_t> encode_whole(const Tokenizer& tokenizer, std::string_view text,
                                       const std::string& source, int threads);

// Each line that is not blank as a text with special tokens. Lines that are longer than the context
// become several texts.
TokenTexts encode_lines(const Tokenizer& tokenizer, std::string_view text,
                        const std::string& source, std::int64_t context, int threads);

// What a tokeniser puts before and behind every text: [CLS] and [SEP].
struct TextEnds {
  std::vector<std::int32_t> before, behind;
  std::int64_t size() const { return std::ssize(before) + std::ssize(behind); }
};
// Throws InvalidArgument if nothing else has room in the context.
TextEnds text_ends(const Tokenizer& tokenizer, std::int64_t context);

// Adds words as a text between these ends, or as several if they are more than the context takes.
void add_in_parts(TokenTexts& to, std::span<const std::int32_t> words, const TextEnds& ends,
                  std::int64_t context);

// Sample i is the window of `length` tokens at i * length, its target the same window one token on.
class EncodedWindows : public Dataset {
 public:
  EncodedWindows(std::vector<std::int32_t> tokens, std::int64_t length)
      : tokens_(std::move(tokens)), length_(length) {}
  std::int64_t size() const override { return (std::ssize(tokens_) - 1) / length_; }
  Batch get(std::span<const std::int64_t> indices) const override;
  bool concurrent() const override { return true; }

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t length_;
};

}  // namespace echelon
