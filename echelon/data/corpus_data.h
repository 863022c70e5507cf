// A corpus of tokens as datasets for a causal language model.
//
//   const CorpusData data = open_corpus("corpus/", {.context = 1024, .validation = 0.01});
//   Trainer trainer(stack, *data.training);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "echelon/data/corpus/corpus.h"
#include "echelon/data/corpus/document_split.h"
#include "echelon/data/dataset.h"

namespace echelon {

struct CorpusOptions {
  std::int64_t context = 1024;  // tokens of a sample
  bool pack = true;             // false: each document alone, cut to the context
  double validation = 0;        // share of the documents (split_documents)
};

struct CorpusData {
  std::shared_ptr<const Corpus> corpus;
  DocumentSplit documents;
  std::shared_ptr<const Dataset> training, validation;  // validation may be null
  std::string description;                              // "corpus/: 625 documents, 3.1M tokens"

  double bytes_per_token() const;  // of text; 0 without tokens
};

// Throws InvalidArgument if there is no corpus, it has no marks between documents, or a part has
// less than one sample; Corrupt if it is damaged.
CorpusData open_corpus(const std::filesystem::path& folder, const CorpusOptions& options);

}  // namespace echelon
