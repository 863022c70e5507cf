// Parameters that layers on several ranks of a pipeline share (tied embeddings): each of these
// ranks has a copy, and gives all of them the sum of the gradients. Data ranks sum theirs before,
// and the copies stay the same to the bit; or under ZeRO afterwards, in slices that are cut alike
// (share_out): then they do wherever the data ranks of these stages add in the same order.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/step/boundary.h"
#include "echelon/step/exchange.h"

namespace echelon {

class Ties {
 public:
  // Collective: all ranks of the pipeline call it, with the same layers.
  Ties(Stack& stack, const Neighbours& neighbours, std::shared_ptr<Exchange> exchange);

  // All gradients of the step are there: sums them, and waits for it.
  void sum();

 private:
  Stack& stack_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::pair<Parameter*, std::shared_ptr<Communicator>>> shared_;
};

}  // namespace echelon
