// The words of a command line before CLI11 sees them.
#pragma once

namespace echelon::cli {

// Throws InvalidArgument for a word that no option accepts: an empty word, which is what an unset
// shell variable becomes (--resume "$RUN"), and a word that is not UTF-8, which no configuration,
// log or summary can hold. --prompt accepts both.
void require_words(int argc, char** argv);

}  // namespace echelon::cli
