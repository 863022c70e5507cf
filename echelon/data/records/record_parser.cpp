#include "echelon/data/records/record_parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/data/records/json_object.h"

namespace echelon {
namespace {

std::string_view kind_name(JsonKind kind) {
  return kind == JsonKind::null ? "null" : kind == JsonKind::array ? "a list" : "an object";
}

std::string columns_text(std::size_t count) {
  return fmt::format("{} column{}", count, count == 1 ? "" : "s");
}

}  // namespace

Malformed RecordParser::check(std::string_view record) {
  if (record.empty()) return {0, "the line is empty; remove it"};
  if (record.size() > longest_) return {0, too_long()};
  std::size_t count = 0;
  if (format_ == RecordFormat::jsonl) {
    const auto wrong = read_json_object(record, {});
    if (!wrong.what.empty())
      return {0, fmt::format("this is no JSON object: {} at column {}", wrong.what, wrong.at + 1)};
  } else if (format_ == RecordFormat::csv) {
    if (auto wrong = split_fields(record, format_, fields_); !wrong.what.empty()) return wrong;
    count = fields_.size();
  } else {
    count = std::size_t(std::count(record.begin(), record.end(), '\t')) + 1;
  }
  if (columns_.empty())
    name_columns(record);
  else if (format_ != RecordFormat::jsonl && count != columns_.size())
    return {0, fmt::format("the line has {} and the first has {}", columns_text(count),
                           columns_.size())};
  return {};
}

std::string RecordParser::too_long() const {
  return fmt::format("the record has more than {}; split it{}", human_bytes(longest_),
                     format_ == RecordFormat::csv ? ", or close the quote that it opens" : "");
}

void RecordParser::name_columns(std::string_view record) {
  if (format_ == RecordFormat::jsonl) {
    read_json_object(record, [&](const JsonMember& member) { columns_.emplace_back(member.key); });
    return;
  }
  split_fields(record, format_, columns_);
  if (header_) return;
  for (std::size_t i = 0; i < columns_.size(); ++i) columns_[i] = fmt::format("{}", i + 1);
}

int RecordParser::column(std::string_view name, const std::filesystem::path& file) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  const auto listed = [&] {
    return fmt::format("its {}: {}", columns_.size() == 1 ? "only column is" : "columns are",
                       fmt::join(columns_, ", "));
  };
  if (found == columns_.end())
    throw InvalidArgument(fmt::format("{} has no column {}; {}", file.string(), name, listed()));
  if (std::find(found + 1, columns_.end(), name) != columns_.end())
    throw InvalidArgument(fmt::format("{} has two columns {}; {}", file.string(), name, listed()));
  return int(found - columns_.begin());
}

Malformed RecordParser::read(std::string_view record, std::span<const int> columns,
                             std::vector<std::string>& fields) const {
  fields.clear();
  if (format_ == RecordFormat::jsonl) return read_json(record, columns, fields);
  std::vector<std::string> all;
  split_fields(record, format_, all);
  for (const int column : columns) fields.push_back(all.at(std::size_t(column)));
  return {};
}

Malformed RecordParser::read_json(std::string_view record, std::span<const int> columns,
                                  std::vector<std::string>& fields) const {
  std::vector<std::optional<std::string>> found(columns.size());
  std::string wrong;
  read_json_object(record, [&](const JsonMember& member) {
    for (std::size_t i = 0; i < columns.size() && wrong.empty(); ++i) {
      if (columns_[std::size_t(columns[i])] != member.key) continue;
      const bool scalar = member.kind == JsonKind::number || member.kind == JsonKind::boolean;
      if (found[i])
        wrong = fmt::format("the object has two values of {}", member.key);
      else if (member.kind != JsonKind::string && !scalar)
        wrong = fmt::format("the value of {} is {}, not text or a number", member.key,
                            kind_name(member.kind));
      else
        found[i] = scalar ? std::string(member.raw) : json_string(member.raw);
    }
  });
  for (std::size_t i = 0; i < columns.size() && wrong.empty(); ++i) {
    if (found[i])
      fields.push_back(std::move(*found[i]));
    else
      wrong = fmt::format("the object has no {}", columns_[std::size_t(columns[i])]);
  }
  return {0, wrong};
}

}  // namespace echelon
