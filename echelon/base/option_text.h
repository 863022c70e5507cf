// The text form of options, for the files that read and print them. Private to this component:
// others use options.h.
#pragma once

#include <string>

#include "echelon/base/options.h"

namespace echelon {

// "at least 1 and at most 8", "more than 0"; "" when every number is allowed.
std::string bounds_text(const Allowed& allowed);

}  // namespace echelon
