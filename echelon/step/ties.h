// Parameters that layers on several ranks of a pipeline share (tied embeddings): each of these
// ranks has a copy, and gives all of them the sum of the gradients. Where data ranks have summed
// their own before, the copies stay the same to the bit. Under ZeRO they are summed over the data
// ranks afterwards, in an order that may depend on where a slice lies: with three data ranks or
// more the copies then agree to rounding.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/step/boundary.h"

namespace echelon {

class Ties {
 public:
  // Collective: all ranks of the pipeline call it, with the same layers.
  Ties(Stack& stack, const Neighbours& neighbours);

  // All gradients of the step are there: sums them, and waits for it. Gives the seconds of waiting.
  double sum();

 private:
  Stack& stack_;
  std::vector<std::pair<Parameter*, std::shared_ptr<Communicator>>> shared_;
};

}  // namespace echelon
