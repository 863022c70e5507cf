// The records of a TSV, CSV or JSONL file by number, their fields by column.
//
//   const Records records("train.tsv");
//   const std::array columns = {records.column("sentence"), records.column("label")};
//   for (std::int64_t i = 0; i < records.size(); ++i) {
//     const auto fields = records.read(i, columns);
//     …
//   }
//
// The whole file is checked when it is opened, and 8 bytes a record are kept. What is not right
// throws Corrupt, which names the file, the line and what to do: bytes that are not UTF-8, an empty
// file, empty lines, rows with more or fewer columns than the first, quotes of CSV and objects of
// JSON that do not end. A byte order mark and CRLF are accepted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/mapped_file.h"
#include "echelon/data/records/format.h"
#include "echelon/data/records/record_parser.h"

namespace echelon {

class Records {
 public:
  struct Options {
    std::optional<RecordFormat> format = {};  // nothing: by the name of the file
    bool header = true;  // TSV and CSV: the first line has the names of the columns
    std::size_t longest = longest_record;  // in bytes; a longer record is Corrupt
  };

  // Throws InvalidArgument if there is no such file or its format is text.
  explicit Records(const std::filesystem::path& path) : Records(path, Options()) {}
  Records(const std::filesystem::path& path, const Options& options);

  const std::filesystem::path& path() const { return file_.path(); }
  std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()); }
  std::uint64_t bytes() const { return file_.bytes().size(); }

  // The names of the header; "1", "2", … without one; of JSONL the keys of the first object.
  const std::vector<std::string>& columns() const { return parser_.columns(); }
  // The place of a column. Throws InvalidArgument that lists the columns if there is none or more
  // than one of this name.
  int column(std::string_view name) const { return parser_.column(name, path()); }

  // The fields of a record in these columns. Numbers and truth values of JSON are as they are
  // written. Throws Corrupt if an object of JSONL lacks one, has it twice, or has no text there.
  std::vector<std::string> read(std::int64_t record, std::span<const int> columns) const;

  // "train.tsv, line 7": where a record begins, for errors.
  std::string place(std::int64_t record) const;

 private:
  std::string_view record(std::int64_t number) const;
  std::string place_of(std::size_t offset) const;
  [[noreturn]] void refuse(std::size_t offset, std::string_view what) const;

  MappedFile file_;
  RecordParser parser_;
  std::vector<std::uint64_t> begins_;  // offsets in the file
};

// A file with records and its format. Throw InvalidArgument if there is no such file, or its format
// is text.
const std::filesystem::path& require_records_file(const std::filesystem::path& path);
RecordFormat require_records_format(const std::filesystem::path& path,
                                    std::optional<RecordFormat> given);

}  // namespace echelon
