// A corpus: documents as tokens of a tokeniser, in a folder that `echelon tokenize corpus` writes.
//
//   const auto corpus = std::make_shared<const Corpus>("corpus/");
//   corpus->size(), corpus->tokens();                // documents and tokens
//   corpus->read(7, 0, std::span(tokens));           // of document 7, from the mapped files
//   Tokenizer::open("corpus/");                      // the tokeniser is in the folder, too
//
// corpus.json describes it, and shard-00000.tokens, shard-00001.tokens, … have the tokens
// (token_shard.h). Tokens are not read into memory: the files are mapped, and the processes of a
// host share their pages. Each process does keep 8 bytes per document for packed samples
// (PackedDocuments), and 8 more if documents are held out for validation (DocumentPart).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/data/corpus/token_documents.h"
#include "echelon/data/corpus/token_shard.h"

namespace echelon {

// What corpus.json says.
struct CorpusDescription {
  std::int64_t vocab = 0;  // tokens are below this
  DocumentMarks marks;
  std::string tokenizer;  // Tokenizer::digest
  std::int64_t files = 0, text_bytes = 0;
  std::vector<ShardTotals> shards;

  int token_bytes() const { return vocab <= 65536 ? 2 : 4; }
  std::int64_t documents() const;
  std::int64_t tokens() const;

  std::string to_json() const;
  // Throws Corrupt that names `where`.
  static CorpusDescription parse(std::string_view json, const std::string& where);
};

std::filesystem::path shard_path(const std::filesystem::path& corpus, std::size_t shard);

// Whether the folder has a corpus.json.
bool is_corpus(const std::filesystem::path& folder);
// Whether a file of a corpus has this name: the description, a shard, or a file of a tokeniser.
bool is_corpus_file(std::string_view name);

class Corpus : public TokenDocuments {
 public:
  // Throws InvalidArgument if there is no corpus, Corrupt if the files contradict each other.
  explicit Corpus(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CorpusDescription& description() const { return description_; }
  // Of all tokens and the tokeniser, from corpus.json: for fingerprints.
  std::string digest() const;

  std::int64_t size() const override { return before_.back(); }
  std::int64_t length(std::int64_t document) const override;
  void read(std::int64_t document, std::int64_t first, std::span<std::int64_t> out) const override;

 private:
  friend class CorpusCheck;
  struct Place {
    const TokenShard& shard;
    std::int64_t document;  // in it
  };
  Place place_of(std::int64_t document) const;

  std::filesystem::path folder_;
  CorpusDescription description_;
  std::vector<std::unique_ptr<const TokenShard>> shards_;
  std::vector<std::int64_t> before_;  // documents before each shard, and of all
};

// Compares every byte of a corpus with its checksums.
class CorpusCheck {
 public:
  explicit CorpusCheck(std::shared_ptr<const Corpus> corpus) : corpus_(std::move(corpus)) {}
  // Reads until the deadline. True: all was read. Throws Corrupt with file and offset.
  bool run(const Deadline& until);

 private:
  std::shared_ptr<const Corpus> corpus_;
  std::size_t shard_ = 0;
  std::int64_t block_ = 0;
  BlockChecksum sum_;
};

}  // namespace echelon
