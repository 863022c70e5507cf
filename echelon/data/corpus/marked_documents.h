// Documents with the tokens that mark where they begin and end: the sequences that a causal model
// learns.
//
//   begin t1 t2 … tn end
//
// A tokeniser with one mark for both (GPT-2's <|endoftext|>) has it at both places.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "echelon/data/corpus/token_documents.h"

namespace echelon {

class MarkedDocuments {
 public:
  // Throws InvalidArgument if there are no marks.
  MarkedDocuments(std::shared_ptr<const TokenDocuments> documents, DocumentMarks marks);

  std::int64_t size() const { return documents_->size(); }
  std::int64_t length(std::int64_t document) const { return documents_->length(document) + 2; }
  // Tokens [first, first + out.size()) of a sequence.
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const;

  // Whether the end of a document is also the beginning of the next one.
  bool shared_mark() const { return begin_ == end_; }
  std::int64_t end() const { return end_; }

 private:
  std::shared_ptr<const TokenDocuments> documents_;
  std::int64_t begin_, end_;
};

}  // namespace echelon
