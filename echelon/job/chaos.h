// Deliberate slowness, for tests and demonstrations.
#pragma once

#include <string>
#include <vector>

#include "echelon/base/options.h"

namespace echelon {

struct ChaosOptions {
  std::vector<std::string> slow = {};

  void fields(Fields& f) {
    f.add("slow", slow,
          "ranks to slow down, for example [\"1:3.0\"]: rank 1 computes three times slower");
  }

  // The factor by which a rank is slowed down; 1 by default. Throws InvalidArgument, also if the
  // job has no such rank.
  double slowness(int rank, int ranks) const;
};

}  // namespace echelon
