// Root-mean-square normalisation over the last dimension with a weight, y = x / rms(x) * w (Zhang
// and Sennrich, "Root Mean Square Layer Normalization", 2019). A building block of layers. If ranks
// split rows, the gradient of the weight is summed over those ranks.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class RmsNorm {
 public:
  void declare(Declaration& declaration, const std::string& name, std::int64_t width,
               double epsilon);

  struct Output {
    at::Tensor y;
    at::Tensor rstd;  // 1 / sqrt(mean of squares + epsilon), one number per row, in fp32 or fp64
  };
  Output forward(const at::Tensor& x) const;  // [rows, width]
  at::Tensor backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd) const;

 private:
  Parameter* weight_ = nullptr;
  double epsilon_ = 0;
};

}  // namespace echelon
