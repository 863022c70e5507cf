// GPT-2's transformer block, pre-norm: x + attention(norm(x)), then x + mlp(norm(x)) with
// tanh-GELU.
#pragma once

#include <string>

#include "echelon/nn/layer.h"
#include "echelon/nn/layer_norm.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/options.h"

namespace echelon {

class GptBlock : public Layer {
 public:
  GptBlock(const ModelOptions& options, int index) : options_(options), index_(index) {}

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }

 private:
  ModelOptions options_;
  int index_;
  LayerNorm norm1_, norm2_;
  Linear attend_, project_, expand_, contract_;
};

}  // namespace echelon
