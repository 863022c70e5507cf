// Logits over a vocabulary, x W^T with W [vocab, width], and their mean cross-entropy against
// target tokens. A building block of a model's last layer.
//
// Ranks can split the vocabulary. Logits are then never gathered. The ranks exchange three numbers
// per row (its largest logit, the sum of its exponentials, the target's logit; "vocabulary" in the
// ledger) and get the same loss, to the bit.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class VocabularyLoss {
 public:
  void declare(Declaration& declaration, const std::string& name, std::int64_t vocab,
               std::int64_t width, double stddev);
  // Uses the table of an earlier TokenTable as W.
  void tie(Declaration& declaration, const std::string& name);

  at::Tensor logits(const at::Tensor& x) const;  // [rows, width] -> [all rows, vocab]

  struct Output {
    at::Tensor loss;  // mean over the rows of pass.target, a scalar (double)
    at::Tensor grad;  // gradient of the logits, for backward; only if the pass trains
  };
  Output forward(const at::Tensor& x, const Pass& pass) const;
  // The gradient of x, given the gradient of the logits.
  at::Tensor backward(const at::Tensor& grad, const at::Tensor& x, Pass& pass) const;

 private:
  Output whole(const at::Tensor& x, const Pass& pass) const;
  Output part(const at::Tensor& x, const Pass& pass) const;

  Parameter* weight_ = nullptr;
};

}  // namespace echelon
