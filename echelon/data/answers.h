// Prompts with answers, for a model that predicts the next token: it learns to write the answers,
// and prompts have no loss.
//
//   tokens    <begin> p1 p2 p3 a1 a2 <end>       the answer begins at a1
//   input     <begin> p1 p2 p3 a1 a2
//   target       -100 -100 -100 a1 a2 <end>
//
// <begin> is there if the tokeniser puts one before a text. Padding follows the last token; a
// causal model never sees it from there, so no mask is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "echelon/data/dataset.h"
#include "echelon/data/token_texts.h"

namespace echelon {

class Answers : public Dataset {
 public:
  // Says where sample i came from, for errors: "train.jsonl, line 7".
  using PlaceOf = std::function<std::string(std::int64_t sample)>;

  // TokenTexts::second is where an answer begins. Throws InvalidArgument if a sample has no prompt
  // or no answer, or more than context + 1 tokens. Without `place_of`, errors name the sample by
  // its number.
  Answers(TokenTexts texts, std::int64_t context, std::int32_t padding,
          const PlaceOf& place_of = {});

  std::int64_t size() const override { return texts_.size(); }
  std::int64_t targets(std::int64_t index) const override;
  std::int64_t length(std::int64_t index) const override {
    return std::ssize(texts_.ids(index)) - 1;
  }
  std::int64_t max_length() const override { return context_; }
  Batch get(std::span<const std::int64_t> indices) const override;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const override;
  bool may_be_sorted() const override { return true; }
  bool concurrent() const override { return true; }

 private:
  TokenTexts texts_;
  std::int64_t context_;
  std::int32_t padding_;
};

// Adds a prompt and its answer, cut to `most` tokens: the prompt loses tokens behind its first
// `kept` ones, so that the model sees its end; an answer that is too long even for a prompt of one
// token loses its end. Returns whether something was cut.
bool add_answer(TokenTexts& texts, std::span<const std::int32_t> prompt,
                std::span<const std::int32_t> answer, std::int64_t kept, std::int64_t most);

}  // namespace echelon
