// What splits a text into words: the pre-tokeniser. A tokeniser has a list of steps; each splits
// the words of the one before it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "echelon/data/tokenizer/pattern.h"

namespace echelon::tok {

// What becomes of the delimiter between two words.
enum class Delimiter { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class SplitterStep {
 public:
  virtual ~SplitterStep() = default;
  // Appends the words of `text`; their bytes count from its beginning. `spare` is memory.
  virtual void split(std::string_view text, std::vector<ByteRange>& out,
                     std::vector<ByteRange>& spare) const = 0;
};

std::unique_ptr<SplitterStep> bert_splitter();
std::unique_ptr<SplitterStep> white_space_splitter();  // WhitespaceSplit
std::unique_ptr<SplitterStep> word_splitter();         // Whitespace: \w+|[^\w\s]+
std::unique_ptr<SplitterStep> punctuation_splitter(Delimiter behaviour);
std::unique_ptr<SplitterStep> digit_splitter(bool each);
std::unique_ptr<SplitterStep> pattern_splitter(std::shared_ptr<const Pattern> pattern,
                                               Delimiter behaviour, bool invert);

struct Splitter {
  std::vector<std::unique_ptr<SplitterStep>> steps;
  // The pre-tokeniser ByteLevel, which comes last: its splitting is a step; the model then works on
  // bytes, and a space comes before each word that does not begin with one.
  bool byte_level = false, prefix_space = false;
  std::unique_ptr<SplitterStep> after_prefix;  // splits what has got its space; may be nothing

  // The words of `text`, without `after_prefix`.
  void split(std::string_view text, std::vector<ByteRange>& out, std::vector<ByteRange>& parts,
             std::vector<ByteRange>& spare) const;
};

}  // namespace echelon::tok
