#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

// How ranks synchronise, and whether that may change while a job runs: docs/switching.md.
struct SyncOptions {
  bool adapt = false;
  std::int64_t every = 5;
  std::int64_t allow_staleness = 0;

  void fields(Fields& f) {
    f.add("adapt", adapt,
          "choose the algorithm of the reductions again while the job runs, when links change");
    f.add("every", every, "steps between looks at what was measured", {.minimum = 1});
    f.add(
        "allow_staleness", allow_staleness,
        "where it pays and the measured gradients allow it, let them be up to so many updates old "
        "for a time; 0: never",
        {.minimum = 0, .maximum = 1000});
  }
};

}  // namespace echelon
