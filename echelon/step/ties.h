// Parameters that layers on several ranks of a pipeline share (tied embeddings). Each of these
// ranks has a copy, and all of them get the sum of the copies' gradients. Without ZeRO, data ranks
// sum their gradients first, and the copies stay equal to the bit. With ZeRO, data ranks sum
// afterwards, in slices that are cut alike (make_shard_groups); the copies then stay equal if the
// data ranks of these stages add in the same order.
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

  // All gradients of the step are complete: sums them and waits for the result.
  void sum();

 private:
  Stack& stack_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::pair<Parameter*, std::shared_ptr<Communicator>>> shared_;
};

}  // namespace echelon
