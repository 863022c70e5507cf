// Options for every job of the lab: `echelon lab --set KEY=VALUE`.
#pragma once

#include <string>
#include <vector>

#include "echelon/job/options.h"

namespace echelon {

struct SharedOptions {
  JobOptions options;
  std::vector<std::string> assignments;  // KEY=VALUE, with absolute paths
};

// Throws InvalidArgument for an option that does not exist, for a value that is not allowed, and
// for an option that the lab sets itself, such as parallel.zero.
SharedOptions shared_options(const std::vector<std::string>& set);

}  // namespace echelon
