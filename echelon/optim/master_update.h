// The end of a step: from gradients to new parameters, entirely on the device.
//
//   norm of all gradients -> is everything finite? -> clip -> optimiser on the master values ->
//   cast to the compute type
//
// Masters are fp32 (fp64 for fp64 models). Where that is the compute type they are the parameters
// themselves; otherwise gradients are widened and masters cast slice by slice, so the extra memory
// is one slice. Once a loss or a gradient is not finite, this and every later update leaves values
// and state as they are: the weights stay those of the last good step however late the host looks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "echelon/nn/stack.h"
#include "echelon/optim/optimizer.h"

namespace echelon {

class MasterUpdate {
 public:
  // Allocates masters (where needed) and optimiser state for the trainable units of an allocated
  // stack.
  MasterUpdate(Stack& stack, const OptimOptions& options);

  // Sets the masters and the stack's parameters.
  void load(const ValueSource& source);

  // The learning rate of the next update, a scalar on the device: the caller writes it.
  const at::Tensor& rate() const { return scalars_.rate; }

  // One update; `loss` is a scalar on the device.
  void apply(const at::Tensor& loss);

  // After apply, scalars on the device: the gradient norm before clipping, and 1 once anything was
  // not finite.
  const at::Tensor& norm() const { return norm_; }
  const at::Tensor& halted() const { return scalars_.skip; }

  // Everything that a resumed run needs, as flat buffers with the segments of the stack's trainable
  // units.
  struct State {
    std::string name;  // "master", "exp_avg", ...
    at::Tensor flat;
  };
  std::vector<State> state() const;
  double updates() const;
  void publish();  // masters -> parameters, after they were changed from outside
  void restart(
      double updates);  // goes on after so many updates; forgets that anything was not finite

 private:
  Stack& stack_;
  OptimOptions options_;
  std::unique_ptr<Optimizer> optimizer_;
  at::Tensor master_;                // the stack's values where the types agree
  std::vector<at::Tensor> moments_;  // by state name
  std::vector<DecayRange> ranges_;
  at::Tensor wide_grad_;  // one slice, where gradients are narrower than masters
  StepScalars scalars_;
  at::Tensor norm_;
};

}  // namespace echelon
