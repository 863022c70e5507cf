// How an optimiser treats a parameter, beside what its options say of all of them. Parameters with
// equal rules are a parameter group in PyTorch's sense.
#pragma once

#include <optional>

namespace echelon {

struct UpdateRule {
  bool decay = true;                     // optim.decay applies: matrices yes, norms and biases no
  double rate = 1;                       // factor of the learning rate
  std::optional<double> own_decay = {};  // in place of optim.decay, or of none

  bool operator==(const UpdateRule&) const = default;
  // Its weight decay, given optim.decay.
  double decay_of(double usual) const { return own_decay.value_or(decay ? usual : 0); }
};

}  // namespace echelon
