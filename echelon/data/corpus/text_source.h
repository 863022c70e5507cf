// The text of files, document by document, in batches of about 1 MiB.
//
//   TextSource source({"a.txt", "b.jsonl"}, {.column = "text", .cut = whole_lines});
//   for (TextBatch batch; source.next(batch);) …
//
// A text file is one document; of a file of records, each record is one. A document that is longer
// than a batch comes in pieces, which end where `cut` says. The batches depend on the text and on
// `cut` alone. Memory is that of one batch, unless a record or the text between two cuts is longer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/input_file.h"
#include "echelon/data/records/record_stream.h"

namespace echelon {

// The number of bytes of a text before its last place where it may be cut; 0: there is none. The
// text is UTF-8, and more follows.
using TextCut = std::function<std::size_t(std::string_view text)>;

// After a line feed.
std::size_t whole_lines(std::string_view text);
// Between a character of ASCII and the blank or line feed after it: no word of GPT-2's pattern is
// on both sides, and what is on one side does not depend on the other.
std::size_t whole_words(std::string_view text);

struct TextPiece {
  std::string text = {};
  bool continues = false;  // its document begins with a piece before it
  bool ends = false;       // its document ends with it
  bool is_record = false;  // it is a document of a file of records
  std::size_t file = 0;    // number of its file,
  std::uint64_t at = 0;    // and its first byte there; of a record, its line
};

struct TextBatch {
  std::vector<TextPiece> pieces;
};

class TextSource {
 public:
  struct Options {
    std::string column = {};  // of the text, in files of records
    bool header = true;       // TSV and CSV: the first line names the columns
    TextCut cut = whole_lines;
    std::size_t batch_bytes = std::size_t{1} << 20;
  };
  // Looks at every file. Throws InvalidArgument if one is missing, or a column is not there or is
  // given and no file has records.
  TextSource(std::vector<std::filesystem::path> files, Options options);
  ~TextSource();

  // False: there is no more. Throws Corrupt that names file and place for text that is not UTF-8
  // and for records that are not right.
  bool next(TextBatch& batch);
  // Where a piece begins, for errors: "a.txt", "a.txt, from byte 1048576 on" or "b.jsonl, line 7".
  // Other threads may call it during next().
  std::string place(const TextPiece& piece) const;

  std::int64_t files() const { return std::ssize(files_); }
  std::int64_t bytes() const { return bytes_; }  // of text, so far

 private:
  void open();
  bool add(TextBatch& batch);  // false: the file has no more
  bool add_text(TextBatch& batch);
  bool add_record(TextBatch& batch);
  void read_more();

  std::vector<std::filesystem::path> files_;
  Options options_;
  std::size_t file_ = 0;  // that is being read
  std::int64_t bytes_ = 0;
  std::size_t in_batch_ = 0;  // bytes

  std::unique_ptr<InputFile> text_;  // a text file,
  std::string waiting_;              // what was read of it and is in no batch yet,
  std::uint64_t offset_ = 0;         // where this begins,
  std::size_t checked_ = 0;          // and how many bytes of it are known to be whole characters
  bool ended_ = false;

  std::unique_ptr<RecordStream> records_;
  int column_ = 0;
  std::vector<std::string> fields_;
};

}  // namespace echelon
