#include "echelon/data/corpus/document_marks.h"

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

DocumentMarks document_marks(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  return {.begin = special.begin ? special.begin : special.classifier,
          .end = special.end ? special.end : special.separator};
}

DocumentMarks require_document_marks(const Tokenizer& tokenizer) {
  const DocumentMarks marks = document_marks(tokenizer);
  if (!marks.begin && !marks.end)
    throw InvalidArgument(fmt::format(
        "the tokeniser {} has no token that begins or ends a text, which a causal model needs "
        "between documents: add one, such as <|endoftext|>, to its tokenizer.json",
        tokenizer.files().front().string()));
  return marks;
}

}  // namespace echelon
