// BERT's transformer block, post-norm: h = norm(x + attention(x)), then norm(h + mlp(h)) with GELU.
// Dropout applies to the output of either branch. BERT also drops attention weights, which are
// never in memory here.
#pragma once

#include <string>

#include "echelon/models/bert/bert.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/layer_norm.h"
#include "echelon/nn/linear.h"

namespace echelon {

class BertBlock : public Layer {
 public:
  BertBlock(const ModelOptions& options, std::int64_t index);

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }
  bool shapes_tell_cost() const override { return true; }

 private:
  std::int64_t heads_in(const at::Tensor& qkv) const;

  ModelOptions options_;
  BertNames names_;
  std::string name_;  // "bert.encoder.layer.3."
  Linear attend_, project_, expand_, contract_;
  LayerNorm norm1_, norm2_;
  Dropout drop_attended_, drop_contracted_;
};

}  // namespace echelon
