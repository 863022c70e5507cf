// Llama's transformer block, pre-norm: x + attention(norm(x)), then x + mlp(norm(x)), where queries
// and keys are rotated by their positions and the mlp is down(silu(gate) * up). Dropout, which
// Llama itself does not have, applies to the output of either branch.
#pragma once

#include <memory>
#include <string>

#include "echelon/models/llama/llama.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/rms_norm.h"

namespace echelon {

class Rotary;

class LlamaBlock : public Layer {
 public:
  LlamaBlock(const ModelOptions& options, int index, std::shared_ptr<Rotary> rotary);

  void declare(Declaration& declaration) override;
  void bind(at::Device device, at::ScalarType type) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  bool capturable() const override { return true; }
  bool takes_rows() const override { return true; }
  bool shapes_tell_cost() const override { return true; }

 private:
  // The heads of this rank, as many as the projection returned.
  struct Heads {
    std::int64_t queries, keys;
  };
  Heads heads_in(const at::Tensor& qkv) const;

  ModelOptions options_;
  LlamaSizes sizes_;
  std::string name_;  // "model.layers.3."
  std::shared_ptr<Rotary> rotary_;
  RmsNorm norm1_, norm2_;
  Linear attend_, project_, expand_, contract_;
  Dropout drop_attended_, drop_contracted_;
};

}  // namespace echelon
