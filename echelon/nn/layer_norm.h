// Layer normalisation over the last dimension, with weight and bias. A building block of layers. If
// ranks split rows, the gradients of weight and bias are summed over those ranks.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class LayerNorm {
 public:
  // The epsilon is added to the variance; by default GPT-2's.
  void declare(Declaration& declaration, const std::string& name, std::int64_t width,
               double epsilon = 1e-5);

  struct Output {
    at::Tensor y, mean, rstd;
  };
  Output forward(const at::Tensor& x) const;
  at::Tensor backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& mean,
                      const at::Tensor& rstd) const;

 private:
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
  double epsilon_ = 0;
};

}  // namespace echelon
