#pragma once

#include <string>
#include <string_view>

namespace echelon {

// A text of a user, with control characters as escapes (\n, \x1b): it stays on one line, and a
// terminal does not interpret it.
std::string one_line(std::string_view text);

}  // namespace echelon
