// The words of a text source, for train_bpe: split by GPT-2's pattern, counted by several threads.
#pragma once

#include "echelon/data/corpus/text_source.h"
#include "echelon/data/tokenizer/word_counts.h"

namespace echelon {

enum class WordsOf {
  lines,      // of a text file: no word spans a line end, as where tokenizers reads files
  documents,  // a word may be line ends and the indentation after them
};

// The source must cut where it says: at whole_lines or whole_words. A record is always one text.
TextCut cut_for(WordsOf words);
WordCounts count_words(TextSource& source, WordsOf words, int threads);

}  // namespace echelon
