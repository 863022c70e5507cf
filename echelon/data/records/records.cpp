#include "echelon/data/records/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"

namespace echelon {
namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

}  // namespace

const std::filesystem::path& require_records_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw InvalidArgument(fmt::format("there is no file {} to read records from", path.string()));
  return path;
}

RecordFormat require_records_format(const std::filesystem::path& path,
                                    std::optional<RecordFormat> given) {
  const RecordFormat format = given.value_or(format_of(path));
  if (format == RecordFormat::text)
    throw InvalidArgument(fmt::format(
        "{} has no records: the name of a file with records ends with .tsv, .csv or .jsonl",
        path.string()));
  return format;
}

Records::Records(const std::filesystem::path& path, const Options& options)
    : file_(require_records_file(path)),
      parser_(require_records_format(path, options.format), options.header, options.longest) {
  const std::string_view text = file_.text();
  std::size_t at = text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0;
  if (at == text.size()) throw Corrupt(fmt::format("{} is empty: it has no record", path.string()));
  if (const auto valid = utf8_prefix(text); valid < text.size()) {
    const auto line = text.rfind('\n', valid);
    throw Corrupt(fmt::format("{}: byte {} of the line, 0x{:02x}, is not UTF-8; convert the file",
                              place_of(valid), valid - (line == text.npos ? 0 : line + 1) + 1,
                              std::uint8_t(text[valid])));
  }
  bool names = parser_.has_header();
  while (at < text.size()) {
    const auto size = record_length(text.substr(at), parser_.format(), /*ends=*/true);
    const auto wrong = parser_.check(without_line_end(text.substr(at, size)));
    if (!wrong.what.empty()) refuse(at + wrong.at, wrong.what);
    if (!std::exchange(names, false)) begins_.push_back(at);
    at += size;
  }
  if (begins_.empty()) throw Corrupt(fmt::format("{} has a header and no record", path.string()));
}

std::string_view Records::record(std::int64_t number) const {
  const auto i = std::size_t(number);
  const auto begin = begins_.at(i);
  const auto end = i + 1 < begins_.size() ? begins_[i + 1] : file_.bytes().size();
  return without_line_end(file_.text().substr(begin, end - begin));
}

std::vector<std::string> Records::read(std::int64_t number, std::span<const int> columns) const {
  file_.require_unchanged();
  std::vector<std::string> fields;
  const auto wrong = parser_.read(record(number), columns, fields);
  if (!wrong.what.empty()) refuse(begins_.at(std::size_t(number)), wrong.what);
  return fields;
}

std::string Records::place(std::int64_t record) const {
  return place_of(begins_.at(std::size_t(record)));
}

std::string Records::place_of(std::size_t offset) const {
  const auto before = file_.text().substr(0, offset);
  return fmt::format("{}, line {}", path().string(),
                     std::count(before.begin(), before.end(), '\n') + 1);
}

void Records::refuse(std::size_t offset, std::string_view what) const {
  throw Corrupt(fmt::format("{}: {}", place_of(offset), what));
}

}  // namespace echelon
