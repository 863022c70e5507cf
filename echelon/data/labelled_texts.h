// Texts, or pairs of texts, that have a label each: the data of a classification.
//
//   LabelledTexts data(std::move(texts), labels, {.context = 512, .padding = 0, .types = true});
//
// A batch has "input", "mask" and perhaps "token_types" of [samples, tokens], and labels [samples]
// as its target.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/data/token_texts.h"

namespace echelon {

// How texts of different lengths become rows of a batch.
struct TextRows {
  std::int64_t context = 0;  // no text has more tokens
  std::int32_t padding = 0;  // the token behind the end of a text
  bool types = false;        // with "token_types": 1 from TokenTexts::second on
};

// Those texts as "input", "mask" (1: a token, 0: padding) and, if wanted, "token_types"; without
// target.
Batch padded_texts(const TokenTexts& texts, std::span<const std::int64_t> indices,
                   std::int64_t length, const TextRows& rows);

class LabelledTexts : public Dataset {
 public:
  // Throws InvalidArgument unless there are as many labels as texts, and no text exceeds the
  // context.
  LabelledTexts(TokenTexts texts, std::vector<std::int32_t> labels, TextRows rows);

  std::int64_t size() const override { return texts_.size(); }
  std::int64_t length(std::int64_t index) const override { return std::ssize(texts_.ids(index)); }
  std::int64_t max_length() const override { return rows_.context; }
  Batch get(std::span<const std::int64_t> indices) const override;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const override;
  bool may_be_sorted() const override { return true; }
  bool concurrent() const override { return true; }

 private:
  TokenTexts texts_;
  std::vector<std::int32_t> labels_;
  TextRows rows_;
};

}  // namespace echelon
