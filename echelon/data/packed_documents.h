// Samples for causal language models out of documents.
//
// Packed: the documents follow each other, and sample i is the window of `context` tokens at
// i * context. Attention does not cross documents, and positions begin anew with each:
//
//   input      … c3 c4 | E d1 d2 d3 | E e1 …        E: <|endoftext|>, which begins a document
//   target     … c4 E  | d1 d2 d3 E | e1 e2 …       and whose prediction ends one
//   mask       … 1  1  | 2 2  2  2  | 3 3  …
//   positions  … 7  8  | 0 1  2  3  | 0 1  …        counted from 0 where the row begins
//
// With marks of their own for both, a document is "B d1 d2 d3 E", and E predicts the next B.
//
// Truncated: sample i is document i, cut to the context.
//
//   input      E d1 d2 d3 E  E                      padded to the longest of its batch
//   target     d1 d2 d3 E -100 -100
//
// A causal model sees padding from padding only, so truncated samples need no mask.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "echelon/data/corpus/marked_documents.h"
#include "echelon/data/dataset.h"

namespace echelon {

class PackedDocuments : public Dataset {
 public:
  // Keeps 8 bytes a document.
  PackedDocuments(MarkedDocuments documents, std::int64_t context);

  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices) const override;
  bool concurrent() const override { return true; }

 private:
  struct Row;
  void fill(std::int64_t index, const Row& row) const;

  MarkedDocuments documents_;
  std::int64_t context_, size_ = 0;
  std::vector<std::int64_t> begins_;  // of each document, in the sequence of all
};

class TruncatedDocuments : public Dataset {
 public:
  TruncatedDocuments(MarkedDocuments documents, std::int64_t context)
      : documents_(std::move(documents)), context_(context) {}

  std::int64_t size() const override { return documents_.size(); }
  std::int64_t targets(std::int64_t index) const override { return length(index); }
  std::int64_t length(std::int64_t index) const override;
  std::int64_t max_length() const override { return context_; }
  Batch get(std::span<const std::int64_t> indices) const override;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const override;
  bool concurrent() const override { return true; }

 private:
  MarkedDocuments documents_;
  std::int64_t context_;
};

}  // namespace echelon
