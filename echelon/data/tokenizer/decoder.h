// Tokens back to text: a list of steps, each from a list of texts to another, which are joined at
// the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echelon/data/tokenizer/pattern.h"

namespace echelon::tok {

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};
using Decoder = std::vector<std::unique_ptr<DecoderStep>>;

std::unique_ptr<DecoderStep> byte_level_decoder();
std::unique_ptr<DecoderStep> byte_fallback_decoder();
std::unique_ptr<DecoderStep> fuse_decoder();
std::unique_ptr<DecoderStep> word_piece_decoder(std::string prefix, bool clean_up);
std::unique_ptr<DecoderStep> bpe_decoder(std::string suffix);
// Removes up to so many of a character from both ends of each token.
std::unique_ptr<DecoderStep> strip_decoder(std::string character, std::int64_t begin,
                                           std::int64_t end);
std::unique_ptr<DecoderStep> replace_decoder(std::shared_ptr<const Pattern> pattern,
                                             std::string content);

// The text with U+FFFD for each stretch that is not UTF-8, as the Unicode standard has it in 3.9.
std::string valid_utf8(std::string_view bytes);

}  // namespace echelon::tok
