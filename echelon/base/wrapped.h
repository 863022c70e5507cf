// Text in lines of at most eighty columns, for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace echelon {

// The first line begins with `first`, every further line with `indent` spaces. Line breaks in the
// text are kept. Spaces within a line are kept, since drawings need them; trailing spaces are
// removed. A word that is too long gets a line of its own.
std::string wrapped(std::string_view first, std::string_view text, std::size_t indent);

}  // namespace echelon
