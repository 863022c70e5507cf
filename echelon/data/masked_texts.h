// Texts with hidden tokens that a model learns to fill in: masked-language modelling.
//
// Of the tokens of a text that are not special, a share is predicted, at least one and always the
// same number. As in BERT (Devlin et al., 2019), 80 % of them become the mask token, 10 % a random
// token of the vocabulary, and 10 % stay as they are. Which ones is a pure function of (seed,
// sample, variant); every epoch has another variant.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/data/labelled_texts.h"
#include "echelon/data/token_texts.h"

namespace echelon {

struct Masking {
  std::uint64_t seed = 0;
  double share = 0.15;                     // of the tokens that are not special
  std::int32_t mask = 0;                   // the token that stands for a hidden one
  std::int64_t vocab = 0;                  // random tokens are below this
  std::vector<std::int32_t> special = {};  // tokens that are never predicted
};

class MaskedTexts : public Dataset {
 public:
  // Texts that have only special tokens, such as unknown ones, are skipped. Throws InvalidArgument
  // if none is left, or one exceeds the context.
  MaskedTexts(TokenTexts texts, TextRows rows, Masking masking);

  std::int64_t skipped() const { return skipped_; }  // texts
  std::int64_t size() const override { return texts_.size(); }
  std::int64_t variants() const override { return std::int64_t{1} << 20; }
  std::int64_t targets(std::int64_t index) const override {
    return targets_[std::size_t(index % size())];
  }
  std::int64_t length(std::int64_t index) const override {
    return std::ssize(texts_.ids(index % size()));
  }
  std::int64_t max_length() const override { return rows_.context; }
  // "input", "mask" and perhaps "token_types"; the target is -100 where nothing is predicted.
  Batch get(std::span<const std::int64_t> indices) const override;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const override;
  bool may_be_sorted() const override { return true; }
  bool concurrent() const override { return true; }

 private:
  bool is_special(std::int32_t token) const {
    return std::size_t(token) < special_.size() && special_[std::size_t(token)];
  }
  void hide(std::int64_t index, std::int64_t* input, std::int64_t* target) const;

  TokenTexts texts_;
  TextRows rows_;
  Masking masking_;
  std::vector<bool> special_;          // by token
  std::vector<std::int32_t> targets_;  // by text
  std::int64_t skipped_ = 0;
};

}  // namespace echelon
