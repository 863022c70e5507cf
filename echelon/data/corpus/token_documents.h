// Documents as tokens: what a language model is trained on. They are in memory (DocumentsInMemory)
// or in the files of a corpus (corpus.h); a dataset cuts samples from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace echelon {

class TokenDocuments {
 public:
  virtual ~TokenDocuments() = default;

  virtual std::int64_t size() const = 0;                         // documents
  virtual std::int64_t length(std::int64_t document) const = 0;  // tokens of one; may be 0
  // Tokens [first, first + out.size()) of a document. Several threads may read. Throws
  // InvalidArgument past its end.
  virtual void read(std::int64_t document, std::int64_t first,
                    std::span<std::int64_t> out) const = 0;

  std::int64_t tokens() const;  // of all documents
};

// The tokens that a tokenizer puts around a text. Where it has only one of them, this one both
// begins and ends a document, as GPT-2's <|endoftext|> does.
struct DocumentMarks {
  std::optional<std::int32_t> begin, end;
};

class DocumentsInMemory : public TokenDocuments {
 public:
  void add(std::span<const std::int32_t> tokens);

  std::int64_t size() const override { return std::int64_t(ends_.size()); }
  std::int64_t length(std::int64_t document) const override;
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override;

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> ends_;  // of each document, in tokens_
};

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
