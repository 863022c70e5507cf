#include "echelon/data/records/records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/records/json_object.h"

namespace echelon {
namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

const std::filesystem::path& existing(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw InvalidArgument(fmt::format("there is no file {} to read records from", path.string()));
  return path;
}

std::string_view kind_name(JsonKind kind) {
  return kind == JsonKind::null ? "null" : kind == JsonKind::array ? "a list" : "an object";
}

std::string columns_text(std::size_t count) {
  return fmt::format("{} column{}", count, count == 1 ? "" : "s");
}

}  // namespace

Records::Records(const std::filesystem::path& path, const Options& options)
    : file_(existing(path)), format_(options.format.value_or(format_of(path))) {
  if (format_ == RecordFormat::text)
    throw InvalidArgument(fmt::format(
        "{} has no records: the name of a file with records ends with .tsv, .csv or .jsonl",
        path.string()));
  const std::string_view text = file_.text();
  std::size_t at = text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0;
  if (at == text.size()) throw Corrupt(fmt::format("{} is empty: it has no record", path.string()));
  if (const auto valid = utf8_prefix(text); valid < text.size()) {
    const auto line = text.rfind('\n', valid);
    throw Corrupt(fmt::format("{}: byte {} of the line, 0x{:02x}, is not UTF-8; convert the file",
                              place_of(valid), valid - (line == text.npos ? 0 : line + 1) + 1,
                              std::uint8_t(text[valid])));
  }
  bool first = true;
  while (at < text.size()) {
    const auto size = record_length(text.substr(at), format_, /*ends=*/true);
    const auto record = without_line_end(text.substr(at, size));
    const bool names = first && format_ != RecordFormat::jsonl && options.header;
    check(at, record);
    if (std::exchange(first, false)) read_header(record, names);
    if (!names) begins_.push_back(at);
    at += size;
  }
  if (begins_.empty()) throw Corrupt(fmt::format("{} has a header and no record", path.string()));
  fields_ = {};
}

void Records::check(std::size_t begin, std::string_view record) {
  if (record.empty()) refuse(begin, "the line is empty; remove it");
  if (format_ == RecordFormat::jsonl) {
    const auto wrong = read_json_object(record, {});
    if (!wrong.what.empty())
      refuse(begin,
             fmt::format("this is no JSON object: {} at column {}", wrong.what, wrong.at + 1));
    return;
  }
  std::size_t count = 0;
  if (format_ == RecordFormat::csv) {
    const auto wrong = split_fields(record, format_, fields_);
    if (!wrong.what.empty()) refuse(begin + wrong.at, wrong.what);
    count = fields_.size();
  } else {
    count = std::size_t(std::count(record.begin(), record.end(), '\t')) + 1;
  }
  if (!columns_.empty() && count != columns_.size())
    refuse(begin, fmt::format("the line has {} and the first has {}", columns_text(count),
                              columns_.size()));
}

void Records::read_header(std::string_view record, bool has_names) {
  if (format_ == RecordFormat::jsonl) {
    read_json_object(record, [&](const JsonMember& member) { columns_.emplace_back(member.key); });
    return;
  }
  split_fields(record, format_, fields_);
  columns_ = fields_;
  if (has_names) return;
  for (std::size_t i = 0; i < columns_.size(); ++i) columns_[i] = fmt::format("{}", i + 1);
}

int Records::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  const auto listed = [&] {
    return fmt::format("its {}: {}", columns_.size() == 1 ? "only column is" : "columns are",
                       fmt::join(columns_, ", "));
  };
  if (found == columns_.end())
    throw InvalidArgument(fmt::format("{} has no column {}; {}", path().string(), name, listed()));
  if (std::find(found + 1, columns_.end(), name) != columns_.end())
    throw InvalidArgument(
        fmt::format("{} has two columns {}; {}", path().string(), name, listed()));
  return int(found - columns_.begin());
}

std::string_view Records::record(std::int64_t number) const {
  const auto i = std::size_t(number);
  const auto begin = begins_.at(i);
  const auto end = i + 1 < begins_.size() ? begins_[i + 1] : file_.bytes().size();
  return without_line_end(file_.text().substr(begin, end - begin));
}

std::vector<std::string> Records::read(std::int64_t record, std::span<const int> columns) const {
  file_.require_unchanged();
  if (format_ == RecordFormat::jsonl) return read_json(record, columns);
  std::vector<std::string> fields, chosen;
  split_fields(this->record(record), format_, fields);
  for (const int column : columns) chosen.push_back(fields.at(std::size_t(column)));
  return chosen;
}

std::vector<std::string> Records::read_json(std::int64_t number,
                                            std::span<const int> columns) const {
  std::vector<std::optional<std::string>> found(columns.size());
  const auto begin = begins_.at(std::size_t(number));
  read_json_object(record(number), [&](const JsonMember& member) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns_[std::size_t(columns[i])] != member.key) continue;
      if (found[i]) refuse(begin, fmt::format("the object has two values of {}", member.key));
      const bool scalar = member.kind == JsonKind::number || member.kind == JsonKind::boolean;
      if (member.kind != JsonKind::string && !scalar)
        refuse(begin, fmt::format("the value of {} is {}, not text or a number", member.key,
                                  kind_name(member.kind)));
      found[i] = scalar ? std::string(member.raw) : json_string(member.raw);
    }
  });
  std::vector<std::string> fields;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (!found[i])
      refuse(begin, fmt::format("the object has no {}", columns_[std::size_t(columns[i])]));
    fields.push_back(std::move(*found[i]));
  }
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
