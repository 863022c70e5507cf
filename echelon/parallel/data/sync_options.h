#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

// How ranks synchronise, and whether that may change while a job runs (docs/switching.md).
struct SyncOptions {
  bool adapt = false;
  std::int64_t every = 5;
  std::int64_t allow_staleness = 0;

  void fields(Fields& f) {
    f.add("adapt", adapt, "choose the all-reduce algorithm again when links change");
    f.add("every", every, "steps between evaluations of the measurements", {.minimum = 1});
    f.add(
        "allow_staleness", allow_staleness,
        "largest staleness of asynchronous phases, which begin where they pay and the measured gradients allow it; 0: never",
        {.minimum = 0, .maximum = 1000});
  }
};

}  // namespace echelon
