// Documents for training and documents for validation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "echelon/data/corpus/token_documents.h"

namespace echelon {

// Some of the documents, for training or for validation.
class DocumentPart : public TokenDocuments {
 public:
  // These documents. Of the first, `skip` tokens are left out; of the last, `drop` tokens at its
  // end.
  DocumentPart(std::shared_ptr<const TokenDocuments> all, std::vector<std::int64_t> documents,
               std::int64_t skip = 0, std::int64_t drop = 0);

  std::int64_t size() const override { return std::int64_t(documents_.size()); }
  std::int64_t length(std::int64_t document) const override;
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override;

 private:
  std::shared_ptr<const TokenDocuments> all_;
  std::vector<std::int64_t> documents_;
  std::int64_t skip_, drop_;
};

struct DocumentSplit {
  std::shared_ptr<const TokenDocuments> training, validation;  // no validation: nullptr
};

// A share of the documents for validation, chosen by a hash of their numbers. If one of the parts
// would have fewer than `least` tokens in this way (a single document, for instance), validation
// gets the end of all tokens, and a document may be cut in two. The same split always.
DocumentSplit split_documents(std::shared_ptr<const TokenDocuments> all, double validation,
                              std::int64_t least);

}  // namespace echelon
