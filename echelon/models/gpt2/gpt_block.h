// GPT-2's transformer block, pre-norm: x + attention(norm(x)), then x + mlp(norm(x)) with
// tanh-GELU. Dropout applies to the output of either branch, not to the attention weights, which
// are never in memory.
#pragma once

#include <string>

#include "echelon/models/options.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/layer_norm.h"
#include "echelon/nn/linear.h"

namespace echelon {

class GptBlock : public Layer {
 public:
  GptBlock(const ModelOptions& options, int index);

  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }
  bool shapes_tell_cost() const override { return true; }

 private:
  std::int64_t heads_in(const at::Tensor& qkv) const;

  ModelOptions options_;
  std::string name_;  // "transformer.h.3."
  LayerNorm norm1_, norm2_;
  Linear attend_, project_, expand_, contract_;
  Dropout drop_attended_, drop_contracted_;
};

}  // namespace echelon
