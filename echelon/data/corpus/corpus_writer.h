// Writes a corpus: text files and files of records as tokens of a tokeniser.
//
//   const CorpusTotals totals = write_corpus({"wiki.jsonl"}, tokenizer, "corpus/",
//                                            {.column = "text"});
//
// The text is read once, in constant memory, and encoded by several threads; the corpus is the same
// for any number of them. It is complete or absent: it is made in a folder beside the final one.
// What another process puts there meanwhile is not removed, unless it is a corpus and `replace` is
// set.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/data/corpus/corpus.h"
#include "echelon/data/corpus/text_source.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon {

struct CorpusWriterOptions {
  std::string column = {};  // of the text, in files of records
  bool header = true;       // TSV and CSV: the first line names the columns
  bool replace = false;     // a corpus that is there
  int threads = 0;          // 0: one for each core
  std::uint64_t shard_bytes = std::uint64_t{1}
                              << 28;  // a shard ends with the document at this size
  // Called now and then with the bytes of text so far; false ends the work with Interrupted.
  std::function<bool(std::int64_t bytes)> progress = {};
};

class Interrupted : public Error {
 public:
  using Error::Error;
};

struct CorpusTotals {
  std::int64_t documents = 0, tokens = 0, shards = 0;
  std::int64_t text_bytes = 0, file_bytes = 0;
};

// Throws InvalidArgument for files or a folder that will not do, with the place for text that the
// tokeniser refuses, and if there is no text; Corrupt, with the place, for text that is not UTF-8
// and records that are not right. Nothing is left then.
CorpusTotals write_corpus(const std::vector<std::filesystem::path>& files,
                          const Tokenizer& tokenizer, const std::filesystem::path& folder,
                          const CorpusWriterOptions& options);

// Throws InvalidArgument unless a corpus can be written to the folder: it must not be there or be
// empty, or have a corpus that may be replaced.
void require_corpus_place(const std::filesystem::path& folder, bool replace);

}  // namespace echelon
