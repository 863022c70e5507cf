#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

// ZeRO, beside parallel.zero: docs/zero.md.
struct ZeroOptions {
  double prefetch = 64;
  double group = 0.25;

  void fields(Fields& f) {
    f.add("prefetch", prefetch,
          "stage 3: parameters that may be brought together ahead of their use; the next group "
          "always is",
          {.minimum = 0, .maximum = 1e9, .unit = "MiB"});
    f.add("group", group,
          "layers that are smaller are shared out, gathered and reduced together with their "
          "neighbours",
          {.minimum = 0, .maximum = 1e6, .unit = "MiB"});
  }
};

}  // namespace echelon
