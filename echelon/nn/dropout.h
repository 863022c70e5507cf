// Dropout whose mask is a pure function of (seed, step, place, element of the global batch), so it
// is the same when a layer runs again, for every number of micro-batches and ranks, and after a
// resume. No mask is kept: backward draws it again. A piece that layers are made of.
#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/random.h"
#include "echelon/nn/layer.h"

namespace echelon {

class Dropout {
 public:
  // `share` of the elements become zero, the others are divided by 1 - share. `place` names where
  // in the model: no two have the same.
  Dropout(double share, std::string place);

  // In place; the first dimension is samples, or this rank's rows where they are split. Nothing
  // happens where the pass is not training.
  at::Tensor forward(at::Tensor x, const Pass& pass) const;
  // A new tensor, or the gradient itself where nothing is dropped.
  at::Tensor backward(const at::Tensor& grad, const Pass& pass) const;

 private:
  void apply(at::Tensor& x, const Pass& pass) const;

  double share_;
  std::string place_;
};

// One place of one step: word i of stream `step` of `key` (fill_words) decides on element i, which
// stays where the word is at least share * 2^32.
struct DropoutMask {
  Key key = 0;
  at::Tensor step;
  double share = 0;
};

// Whether the elements [first, first + count) stay, on the step's device, by torch's operators
// alone: nothing waits for the host. What a GPU runs; on the CPU a loop gives the same bits.
at::Tensor stays(const DropoutMask& mask, std::int64_t first, std::int64_t count);

}  // namespace echelon
