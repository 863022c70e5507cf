// Llama's first and last layer: the token embedding, and the final norm with the loss over the
// vocabulary.
#pragma once

#include "echelon/models/options.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/rms_norm.h"
#include "echelon/nn/token_table.h"
#include "echelon/nn/vocabulary_loss.h"

namespace echelon {

// [samples, tokens] -> [samples, tokens, width]
class LlamaEmbedding : public Layer {
 public:
  explicit LlamaEmbedding(const ModelOptions& options)
      : options_(options), drop_(options.dropout, "model.drop") {}

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& tokens, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_dropped, Pass& pass) override;
  bool keeps_more_than_input() const override { return false; }
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  TokenTable tokens_;
  Dropout drop_;
};

// Without a target it returns the logits.
class LlamaHead : public Layer {
 public:
  explicit LlamaHead(const ModelOptions& options) : options_(options) {}

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  RmsNorm norm_;
  VocabularyLoss loss_;  // over the embedding's table if tied
};

}  // namespace echelon
