// The words of a command line before CLI11 sees them.
#pragma once

namespace echelon::cli {

// Throws InvalidArgument for a word that no option can mean: an empty one, which is what a shell
// makes of an unset variable (--resume "$RUN"), and one that is not UTF-8, which no configuration,
// log or summary can hold. --prompt takes both.
void require_words(int argc, char** argv);

}  // namespace echelon::cli
