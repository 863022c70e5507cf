// The formats of text files, and how records are cut out of them.
//
//   tsv    fields between tabs, taken as they are: no quotes, no escapes (the files of GLUE)
//   csv    RFC 4180: fields between commas; a field in quotes may hold commas, line ends, and
//          quotes written twice
//   jsonl  one JSON object a line (RFC 8259)
//   text   no records
//
// A record ends with a line feed, before which a carriage return may stand, or with the file. In
// CSV, a line feed within quotes belongs to the field.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/named_enum.h"

namespace echelon {

enum class RecordFormat { text, tsv, csv, jsonl };
constexpr auto names_of(RecordFormat) { return names("text", "tsv", "csv", "jsonl"); }

// In bytes. Longer records are refused: a reader of a stream has one of them in memory.
constexpr std::size_t longest_record = std::size_t{1} << 30;

// By the end of a file's name: .tsv, .csv, .jsonl and .ndjson; text otherwise.
RecordFormat format_of(const std::filesystem::path& path);

// What is wrong with bytes, and where: an offset in the text that was given.
struct Malformed {
  std::size_t at = 0;
  std::string what;  // empty: nothing
};

// The length of the first record of `text`, its line end included. If the record may continue after
// `text`, which `ends` says is not all of the file, the length is 0.
std::size_t record_length(std::string_view text, RecordFormat format, bool ends);

// A record without its line end.
std::string_view without_line_end(std::string_view record);

// The fields of one record of TSV or CSV, without its line end.
Malformed split_fields(std::string_view record, RecordFormat format,
                       std::vector<std::string>& fields);

}  // namespace echelon
