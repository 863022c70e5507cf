// Where a long text is cut so that its tokens do not show it.
#pragma once

#include "echelon/data/corpus/text_source.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

// A place to cut a text so that the parts, of which the second continues the first
// (Tokenizer::append), have the tokens of the whole: `tokenizer` must give the same around it. 0:
// no such place near the end.
TextCut cut_for(const Tokenizer& tokenizer);

}  // namespace echelon
