// How a job is laid over its ranks.
#pragma once

#include "echelon/base/options.h"

namespace echelon {

struct ParallelOptions {
  double bucket_mib = 0;
  bool exchange_alone = false;

  void fields(Fields& f) {
    f.add("bucket_mib", bucket_mib,
          "gradients that are averaged together, in MiB; 0: by the measured links",
          {.minimum = 0, .maximum = 1e6});
    f.add("exchange_alone", exchange_alone,
          "one rank exchanges with itself, as several would: what that costs can be measured");
  }
};

}  // namespace echelon
