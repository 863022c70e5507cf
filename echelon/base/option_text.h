// The text form of options, for the files that read and print them. Private to this component:
// others use options.h.
#pragma once

#include <string>
#include <string_view>

#include "echelon/base/options.h"

namespace echelon {

// "at least 1 and at most 8", "more than 0"; "" when every number is allowed.
std::string bounds_text(const Allowed& allowed);

// The shortest digits that read back to the same double, with a point or an exponent so that TOML
// sees a float.
std::string toml_double(double value);

// A TOML basic string, with quotes and escapes.
std::string toml_string(std::string_view text);

}  // namespace echelon
