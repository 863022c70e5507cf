// Which tokens of a tokeniser mark where documents begin and end.
#pragma once

#include "echelon/data/corpus/token_documents.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

// Its begin and end tokens; BERT's [CLS] and [SEP] in place of one that it lacks. Either may be
// missing.
DocumentMarks document_marks(const Tokenizer& tokenizer);

// The same, and throws InvalidArgument if there are none: a causal model needs a mark between
// documents.
DocumentMarks require_document_marks(const Tokenizer& tokenizer);

}  // namespace echelon
