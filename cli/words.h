// The words of a command line before CLI11 sees them.
#pragma once

#include <string>
#include <string_view>

namespace echelon::cli {

// Throws InvalidArgument for a word that no option can mean: an empty one, which is what a shell
// makes of an unset variable (--resume "$RUN"), and one that is not UTF-8, which no configuration,
// log or summary can hold. --prompt takes both.
void require_words(int argc, char** argv);

// A message that repeats what a user gave, with control characters as escapes (\n, \x1b): it stays
// one line, and no terminal obeys it.
std::string one_line(std::string_view message);

}  // namespace echelon::cli
