// BERT's first layer: words plus learned positions plus token types, a norm, then dropout:
// [samples, tokens] -> [samples, tokens, width].
#pragma once

#include "echelon/models/bert/bert.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/layer_norm.h"
#include "echelon/nn/position_table.h"
#include "echelon/nn/token_table.h"
#include "echelon/nn/token_type_table.h"

namespace echelon {

class BertEmbedding : public Layer {
 public:
  explicit BertEmbedding(const ModelOptions& options);

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& tokens, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  // It keeps the input of its norm, which is as large as the input of a block. Looking words up
  // again would cost an exchange where ranks split the vocabulary.
  bool keeps_more_than_input() const override { return false; }
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }

 private:
  ModelOptions options_;
  BertNames names_;
  TokenTable words_;
  PositionTable positions_;
  TokenTypeTable types_;
  LayerNorm norm_;
  Dropout drop_;
};

}  // namespace echelon
