// Dropout whose mask is a pure function of (seed, step, place, element of the global batch). The
// mask is therefore the same when a layer is recomputed, for every number of micro-batches and
// ranks, and after a resume. No mask is stored: backward draws it again. A building block of
// layers.
#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/random.h"
#include "echelon/nn/layer.h"

namespace echelon {

class Dropout {
 public:
  // Sets a fraction `share` of the elements to zero and divides the others by 1 - share. `place`
  // names the position in the model; each Dropout of a model needs its own.
  Dropout(double share, std::string place);

  // In place. The first dimension is the samples, or this rank's rows if rows are split. Does
  // nothing if the pass is not training.
  at::Tensor forward(at::Tensor x, const Pass& pass) const;
  // Returns a new tensor, or the gradient itself if nothing is dropped.
  at::Tensor backward(const at::Tensor& grad, const Pass& pass) const;

 private:
  void apply(at::Tensor& x, const Pass& pass) const;

  double share_;
  std::string place_;
};

// The mask of one place in one step: word i of stream `step` of `key` (fill_words) decides about
// element i, which is kept if the word is at least share * 2^32.
struct DropoutMask {
  Key key = 0;
  at::Tensor step;
  double share = 0;
};

// Whether each of the elements [first, first + count) is kept, on the step's device. Uses only
// torch operators and never synchronises with the host. GPUs run this; on the CPU a loop gives the
// same bits.
at::Tensor stays(const DropoutMask& mask, std::int64_t first, std::int64_t count);

}  // namespace echelon
