// The fields of an options struct with the keys of a job that has it as a section, "optim.rate":
// errors about a struct that a program filled then name what a user knows.
//
//   check_section("optim", options);
#pragma once

#include <string_view>

#include "echelon/base/options.h"

namespace echelon {

template <class Options>
Fields fields_in(std::string_view section, Options& options) {
  Fields fields;
  fields.section(section, options);
  return fields;
}

// Throws InvalidArgument for the first value that is not allowed.
template <class Options>
void check_section(std::string_view section, Options options) {
  check_options(fields_in(section, options));
}

}  // namespace echelon
