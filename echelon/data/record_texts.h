// Columns of a file of records as tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "echelon/data/records/records.h"
#include "echelon/data/token_texts.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

// What is made of some records. A record without text is refused with file and line.
struct RecordTexts {
  TokenTexts texts;
  std::uint64_t bytes = 0;   // of text
  std::uint64_t digest = 0;  // of the text
  std::int64_t cut = 0;      // texts that were truncated
};

struct EncodeRecords {
  const Records& records;
  const Tokenizer& tokenizer;
  std::vector<int> columns;               // of the text, or of both texts of a pair
  std::span<const std::int64_t> numbers;  // of the records, in the order of the result
  std::int64_t context = 0;               // tokens of a sample at most
  int threads = 1;
};

// With the special tokens of the tokeniser; `second` is where the tokens of type 1 begin. Texts
// that are too long lose their ends.
RecordTexts encode_texts(const EncodeRecords& what);

// Without special tokens, whole.
RecordTexts encode_plain(const EncodeRecords& what);

// The columns are a prompt and an answer: see answers.h. The tokeniser's end token follows the
// answer. Throws InvalidArgument if it has none.
RecordTexts encode_answers(const EncodeRecords& what);

}  // namespace echelon
