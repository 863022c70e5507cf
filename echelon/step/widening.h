// Decides when gradients of bf16 and fp16 models are added to their fp32 sums (train.reduce=fp32).
// Backward accumulates into a group's gradients in the model's own type, so they must come from a
// single micro-batch: a group is widened before an action of another micro-batch changes it. Orders
// that finish a micro-batch before the next one changes the same group widen it once per
// micro-batch, when its gradients are complete. Under zero-bubble, the weight part of one
// micro-batch follows the input part of a later one, and groups are widened between the two.
#pragma once

#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/step/table.h"

namespace echelon {

class Widening {
 public:
  explicit Widening(const Stack& stack);  // the stack must be laid out

  void begin_step();
  // Call it for every action in turn: returns the groups to widen before the action runs. Reduce
  // and scatter widen their own gradients.
  std::vector<int> before(const Action& action);

 private:
  std::vector<std::vector<int>> changes_;  // by layer: groups that its backward changes
  std::vector<int> micro_batch_;           // by group: micro-batch of its gradients; -1: none
};

}  // namespace echelon
