// The rules of a record of TSV, CSV or JSONL, and its fields: what Records and RecordStream share.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/data/records/format.h"

namespace echelon {

class RecordParser {
 public:
  RecordParser(RecordFormat format, bool header, std::size_t longest)
      : format_(format), header_(header), longest_(longest) {}

  RecordFormat format() const { return format_; }
  std::size_t longest() const { return longest_; }  // bytes of a record without its line end
  // Whether the first record has the names of the columns.
  bool has_header() const { return header_ && format_ != RecordFormat::jsonl; }

  // What is wrong with a record without its line end. The first one that is right names the
  // columns; all others must have as many of them.
  Malformed check(std::string_view record);
  // What check() says about a record that is too long.
  std::string too_long() const;

  // The names of the header; "1", "2", … without one; of JSONL the keys of the first object.
  const std::vector<std::string>& columns() const { return columns_; }
  // The place of a column. Throws InvalidArgument that names the file and its columns if there is
  // none or more than one of this name.
  int column(std::string_view name, const std::filesystem::path& file) const;

  // The fields of a checked record in these columns. Numbers and truth values of JSON are as they
  // are written. An object may lack one, have it twice, or have no text there.
  Malformed read(std::string_view record, std::span<const int> columns,
                 std::vector<std::string>& fields) const;

 private:
  void name_columns(std::string_view record);
  Malformed read_json(std::string_view record, std::span<const int> columns,
                      std::vector<std::string>& fields) const;

  RecordFormat format_;
  bool header_;
  std::size_t longest_;
  std::vector<std::string> columns_;
  std::vector<std::string> fields_;  // of the record that is being checked
};

}  // namespace echelon
