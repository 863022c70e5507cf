// y = x W + b, or x W, with W as [in, out]. Not a Layer by itself but a building block of layers.
//
// Ranks can split W by columns (or by heads, which are columns too) or by rows. Split by columns, x
// is whole and y is a part of the columns. Split by rows, x is a part of the columns and y is a sum
// over the ranks. A column split followed by a row split, with only column-wise operations between
// them, needs two exchanges in each direction.
//
// A frozen W costs no gradient. If the model is adapted (low_rank.h), the product adds x A B.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class Linear {
 public:
  enum class Bias { no, yes };
  // What ranks that split the model hold of W. parts: a part each, if the split plan says so.
  // whole: all of it, and they work on the same x. whole_on_rows: all of it, and each works on its
  // rows of x if rows are split; the gradients are then summed over the ranks.
  enum class Share { parts, whole, whole_on_rows };
  void declare(Declaration& declaration, const std::string& name, std::int64_t in, std::int64_t out,
               double stddev, Bias bias = Bias::yes, Share share = Share::parts);

  at::Tensor forward(const at::Tensor& x) const;  // [n, in] -> [n, out]

  // Returns the gradient of x. The product itself writes the gradients of W and b to their buffers
  // (or adds to them), now or deferred as the pass says.
  at::Tensor backward(const at::Tensor& grad_y, const at::Tensor& x, Pass& pass) const;

  // The ranks that split the model's products; null: none do.
  const std::shared_ptr<TensorGroup>& group() const { return weight_->group; }

 private:
  // Adds the adaptation's part to y, given all of x that this rank's part of W takes.
  void add_low_rank(const at::Tensor& y, const at::Tensor& x) const;

  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;  // null: no bias
  Share share_ = Share::parts;
  const LowRank* low_rank_ = nullptr;  // null: no adaptation
  Parameter *a_ = nullptr, *b_ = nullptr;
};

}  // namespace echelon
