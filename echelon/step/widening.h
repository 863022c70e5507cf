// When gradients of bf16 and fp16 models join their fp32 sums (train.reduce=fp32). Backward adds
// what it computes to a group's gradients in the model's own type, so those must be of one
// micro-batch: a group is widened before an action of another one changes it. Orders that finish a
// micro-batch before the next one changes the same group widen it once a micro-batch, when its
// gradients are complete. Under zero-bubble the weight part of one follows the input part of a
// later one, and groups are widened between the two.
#pragma once

#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/step/table.h"

namespace echelon {

class Widening {
 public:
  explicit Widening(const Stack& stack);  // laid out

  void begin_step();
  // Of every action in turn: the groups to be widened before it runs. What is reduced or scattered
  // is widened by that.
  std::vector<int> before(const Action& action);

 private:
  std::vector<std::vector<int>> changes_;  // by layer: groups that its backward changes
  std::vector<int> micro_batch_;           // by group: whose gradients it has; -1: none
};

}  // namespace echelon
