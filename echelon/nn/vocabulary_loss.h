// Logits over a vocabulary, x W^T + b with W [vocab, width] and perhaps a bias, and their
// cross-entropy against target tokens. A building block of a model's last layer.
//
// The loss is the mean over the rows. If samples say how many targets they have (Batch::targets),
// rows whose target is -100 have none, and the loss is the sum over the others divided by
// Pass::divisor. On a CPU only rows with a target are computed then.
//
// Ranks can split the vocabulary. Logits are then never gathered (except for Pass::observe). The
// ranks exchange three numbers per row (its largest logit, the sum of its exponentials, the
// target's logit; "vocabulary" in the ledger) and get the same loss, to the bit.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

inline constexpr std::int64_t no_target = -100;

class VocabularyLoss {
 public:
  void declare(Declaration& declaration, const std::string& name, std::int64_t vocab,
               std::int64_t width, double stddev);
  // Uses the table of an earlier TokenTable as W.
  void tie(Declaration& declaration, const std::string& name);
  // Adds a bias, [vocab].
  void declare_bias(Declaration& declaration, const std::string& name, std::int64_t vocab);

  at::Tensor logits(const at::Tensor& x) const;  // [rows, width] -> [all rows, vocab]

  struct Output {
    at::Tensor loss;  // a scalar (double)
    // For backward, only if the pass trains: the gradient of the logits, and the rows that it is
    // of; undefined: all.
    at::Tensor grad, rows;
  };
  Output forward(const at::Tensor& x, const Pass& pass) const;
  // The gradient of x.
  at::Tensor backward(const Output& output, const at::Tensor& x, Pass& pass) const;

 private:
  struct Targets;
  Output whole(const at::Tensor& x, const Targets& targets, const Pass& pass) const;
  Output part(const at::Tensor& x, const Targets& targets, const Pass& pass) const;
  void write_logits(at::Tensor logits, const at::Tensor& x) const;
  at::Tensor gathered(const at::Tensor& logits) const;  // those of the whole vocabulary

  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;  // null: none
};

}  // namespace echelon
