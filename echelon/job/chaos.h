// Trouble on purpose, for tests and demonstrations.
#pragma once

#include <string>
#include <vector>

#include "echelon/base/options.h"

namespace echelon {

struct ChaosOptions {
  std::vector<std::string> slow = {};

  void fields(Fields& f) {
    f.add("slow", slow, "ranks that compute slower, as in [\"1:3.0\"]: rank 1 three times");
  }

  // How many times slower this rank is to be: 1 where nothing is said. Throws InvalidArgument, also
  // for a rank that a job of so many has not.
  double slowness(int rank, int ranks) const;
};

}  // namespace echelon
