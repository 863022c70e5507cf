// BERT's last layers. Without a target they return the logits.
#pragma once

#include "echelon/models/bert/bert.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/layer_norm.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/vocabulary_loss.h"

namespace echelon {

// Masked words: a product, GELU, a norm, and logits over the vocabulary for every token.
class BertMaskedHead : public Layer {
 public:
  explicit BertMaskedHead(const ModelOptions& options) : options_(options), names_(options) {}

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  BertNames names_;
  Linear transform_;
  LayerNorm norm_;
  VocabularyLoss loss_;  // over the embedding's table if tied
};

// Classification: the first token of each sample through a product with tanh (DistilBERT: ReLU),
// dropout, and a product that gives the logits of the labels. Every rank of a tensor group computes
// all of it, since it is small.
class BertClassHead : public Layer {
 public:
  explicit BertClassHead(const ModelOptions& options);

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  BertNames names_;
  bool distilled_;
  Linear pooler_, classifier_;
  Dropout drop_;
};

}  // namespace echelon
