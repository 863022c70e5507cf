// GPT-2's first layer: token embedding plus learned positions, then dropout: [batch, tokens] ->
// [batch, tokens, width].
#pragma once

#include "echelon/models/options.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/position_table.h"
#include "echelon/nn/token_table.h"

namespace echelon {

class GptEmbedding : public Layer {
 public:
  explicit GptEmbedding(const ModelOptions& options)
      : options_(options), drop_(options.dropout, "transformer.drop") {}

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& tokens, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_dropped, Pass& pass) override;
  bool keeps_more_than_input() const override { return false; }
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  TokenTable tokens_;
  PositionTable positions_;
  Dropout drop_;
};

}  // namespace echelon
