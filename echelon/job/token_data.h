// Sources that are read with a tokeniser, as datasets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echelon/data/corpus/corpus_tokenizer.h"
#include "echelon/data/dataset.h"
#include "echelon/data/fingerprint.h"
#include "echelon/data/options.h"
#include "echelon/data/records/records.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/models/options.h"

namespace echelon {

// What reading a source takes besides the source.
struct TokenReader {
  const ModelOptions& model;
  const DataOptions& data;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::uint64_t seed = 0;
  int threads = 1;
};

// A part of the data: training or validation.
struct TokenPart {
  std::shared_ptr<const Dataset> data = {};  // null: there is none
  std::uint64_t bytes = 0;                   // of its text
  std::int64_t tokens = 0;                   // of which the loss is taken, of that text
  std::uint64_t digest = 0;
  std::string description = {};  // "67349 texts"
};

struct TokenParts {
  TokenPart training = {}, validation = {};
  std::int64_t files = 0;
};

// data.source, and data.validation_source or the share `validation` of the source.
TokenParts open_records(const TokenReader& reader, double validation);
TokenParts open_corpus_parts(const TokenReader& reader, double validation);
TokenParts open_text_as_tokens(const TokenReader& reader, double validation);

// The tokeniser's part of a fingerprint.
std::string fingerprint_name(const Tokenizer& tokenizer);

// The column that an option names, or else the first of `usual` that there is; -1 if there is none.
int find_column(const Records& records, const std::string& option,
                const std::vector<std::string>& usual);
// The same, and throws InvalidArgument if there is none: "… has no column sentence or text".
int require_column(const Records& records, const char* key, const std::string& option,
                   const std::vector<std::string>& usual);

inline const std::vector<std::string> usual_text = {"sentence", "text"}, usual_label = {"label"},
                                      usual_prompt = {"prompt"},
                                      usual_answer = {"answer", "completion"};

}  // namespace echelon
