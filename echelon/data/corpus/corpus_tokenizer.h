// Whether a tokeniser is the one that a corpus was made with.
#pragma once

#include <string>

#include "echelon/data/corpus/corpus.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

// Throws InvalidArgument if the tokeniser is another than that with which the corpus in `folder`
// was made, and Corrupt if it is the same and the corpus has another size of the vocabulary.
void require_same_tokenizer(const CorpusDescription& corpus, const std::string& folder,
                            const Tokenizer& tokenizer);

}  // namespace echelon
