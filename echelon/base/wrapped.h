// Text in lines of at most eighty columns, for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace echelon {

// The first line begins with `first`; what would pass goes on below, after `indent` blanks, and so
// does what follows an end of line in the text. Blanks within a line stay, as pictures need them;
// none end one. A longer word has a line of its own.
std::string wrapped(std::string_view first, std::string_view text, std::size_t indent);

}  // namespace echelon
