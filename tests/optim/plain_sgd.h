// The optimiser for tests that inspect gradients: value -= rate * gradient and nothing else.
#pragma once

#include "echelon/optim/options.h"

namespace echelon {

inline OptimOptions plain_sgd() {
  OptimOptions options;
  options.name = OptimizerKind::sgd;
  options.momentum = 0;
  options.decay = 0;
  options.clip = 0;
  return options;
}

}  // namespace echelon
