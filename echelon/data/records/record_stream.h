// The records of a TSV, CSV or JSONL file one after another, for files that are read once: only the
// record at hand is in memory, and one that is too long is refused before it is read to its end.
// Records (records.h) has them by number.
//
//   RecordStream stream("train.jsonl");
//   const std::array columns = {stream.column("text")};
//   std::vector<std::string> fields;
//   while (stream.next(columns, fields)) …
//
// The rules of Records hold; each record is checked when it is read. What is not right throws
// Corrupt, which names the file, the line and what to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/input_file.h"
#include "echelon/data/records/record_parser.h"
#include "echelon/data/records/records.h"

namespace echelon {

class RecordStream {
 public:
  // Reads the first record. Throws InvalidArgument if there is no such file or its format is text.
  explicit RecordStream(const std::filesystem::path& path, const Records::Options& options = {});

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<std::string>& columns() const { return parser_.columns(); }
  int column(std::string_view name) const { return parser_.column(name, path()); }

  // The fields of the next record in these columns; false at the end.
  bool next(std::span<const int> columns, std::vector<std::string>& fields);
  // "train.tsv, line 7": where the record begins that next() gave last, for errors.
  std::string place() const;
  std::int64_t line() const { return line_; }

 private:
  bool find_record();
  std::size_t longest_unfinished() const;
  void read_more();
  void check_record();
  [[noreturn]] void refuse(std::size_t offset, std::string_view what) const;

  InputFile file_;
  RecordParser parser_;
  std::string text_;         // the present record is in it
  std::uint64_t read_ = 0;   // bytes of the file
  std::size_t begin_ = 0;    // of the present record in text_
  std::size_t size_ = 0;     // of it, its line end included
  std::string_view record_;  // it without its line end
  std::int64_t line_ = 1;    // at which it begins
  bool found_ = false;       // next() has yet to give it
};

}  // namespace echelon
