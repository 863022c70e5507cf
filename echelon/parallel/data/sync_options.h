#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

// How ranks synchronise, and whether that may change while a job runs: docs/switching.md.
struct SyncOptions {
  bool adapt = false;
  std::int64_t every = 5;

  void fields(Fields& f) {
    f.add("adapt", adapt,
          "choose the algorithm of the reductions again while the job runs, when links change");
    f.add("every", every, "steps between looks at what was measured", {.minimum = 1});
  }
};

}  // namespace echelon
