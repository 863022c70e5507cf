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

// Throws InvalidArgument unless tokens [first, first + count) are within a document of this length.
void require_within(std::int64_t first, std::size_t count, std::int64_t length);

// The tokens that a tokeniser puts around a text. Where it has only one of them, this one both
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

}  // namespace echelon
