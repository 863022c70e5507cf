// GPT-2's last layer: final norm, logits over the vocabulary, mean cross-entropy against the next
// tokens. Without a target it returns the logits.
#pragma once

#include "echelon/models/options.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/layer_norm.h"
#include "echelon/nn/vocabulary_loss.h"

namespace echelon {

class GptHead : public Layer {
 public:
  explicit GptHead(const ModelOptions& options) : options_(options) {}

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  LayerNorm norm_;
  VocabularyLoss loss_;  // over the embedding's table if tied
};

}  // namespace echelon
