// y = x W + b, or x W, with W as [in, out]. Not a Layer by itself: a piece that layers are made of.
//
// Ranks can split W by columns (or heads: columns too), where x is whole and y a part of the
// columns, or by rows, where x is such a part and y a sum over the ranks. One of each, with
// something between that works column by column, needs two exchanges in each direction.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class Linear {
 public:
  enum class Bias { no, yes };
  void declare(Declaration& declaration, const std::string& name, std::int64_t in, std::int64_t out,
               double stddev, Bias bias = Bias::yes);

  at::Tensor forward(const at::Tensor& x) const;  // [n, in] -> [n, out]

  // The gradient for x. Those of W and b are written to (or added into) their buffers by the
  // product itself, now or later as the pass says.
  at::Tensor backward(const at::Tensor& grad_y, const at::Tensor& x, Pass& pass) const;

 private:
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;  // null: it has none
};

}  // namespace echelon
