#include "echelon/data/corpus/corpus_tokenizer.h"

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

void require_same_tokenizer(const CorpusDescription& corpus, const std::string& folder,
                            const Tokenizer& tokenizer) {
  const auto& file = tokenizer.files().front();
  if (tokenizer.digest() != corpus.tokenizer)
    throw InvalidArgument(fmt::format(
        "the tokeniser {} is not that of the corpus {}: its digest is {}, and the corpus was made "
        "with {}; use the one in the corpus, or make the corpus anew with echelon tokenize corpus "
        "--tokenizer {}",
        file.string(), folder, tokenizer.digest(), corpus.tokenizer, file.parent_path().string()));
  if (tokenizer.size() != corpus.vocab)
    throw Corrupt(fmt::format("{}/corpus.json has vocab {}, and the tokeniser {} has {} tokens",
                              folder, corpus.vocab, file.string(), tokenizer.size()));
}

}  // namespace echelon
