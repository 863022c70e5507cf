#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/options.h"

namespace echelon {

struct DataOptions {
  std::string source = "stdlib";
  double validation = 0.05;

  void fields(Fields& f) {
    f.add(
        "source", source,
        "stdlib: the Python standard library's sources; random: random tokens; else a text file or a folder of them");
    f.add("validation", validation, "share of the text kept for validation",
          {.minimum = 0, .maximum = 0.5});
  }
};

}  // namespace echelon
