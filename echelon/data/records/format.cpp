#include "echelon/data/records/format.h"

#include <algorithm>

namespace echelon {
namespace {

// The length of a record of CSV: to the first line feed that is not within quotes. A quote opens a
// field only where the field begins, as in split_csv, which refuses it elsewhere: a stray one must
// not make the rest of the file part of the record.
std::size_t csv_length(std::string_view text, bool ends) {
  // Within a field; `closed` is behind a quote, which closes it unless another one follows.
  enum class In { beginning, plain, quoted, closed } in = In::beginning;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in == In::quoted)
      in = c == '"' ? In::closed : In::quoted;
    else if (c == '\n')
      return at + 1;
    else if (c == '"' && in != In::plain)
      in = In::quoted;
    else
      in = c == ',' ? In::beginning : In::plain;
  }
  return ends ? text.size() : 0;
}

// A field that begins with a quote; `at` is just after it, and afterwards behind the closing one.
Malformed quoted_field(std::string_view record, std::size_t& at, std::string& field) {
  const std::size_t opened = at - 1;
  for (;;) {
    const auto quote = record.find('"', at);
    if (quote == record.npos) return {opened, "a quote is opened and never closed"};
    field.append(record, at, quote - at);
    at = quote + 1;
    if (at == record.size() || record[at] != '"') break;
    field.push_back('"');
    ++at;
  }
  if (at < record.size() && record[at] != ',')
    return {at, "a closing quote must be followed by a comma or the end of the line"};
  return {};
}

Malformed split_csv(std::string_view record, std::vector<std::string>& fields) {
  std::size_t at = 0;
  for (;;) {
    std::string& field = fields.emplace_back();
    if (at < record.size() && record[at] == '"') {
      if (auto wrong = quoted_field(record, ++at, field); !wrong.what.empty()) return wrong;
    } else {
      const auto end = std::min(record.find(',', at), record.size());
      field = record.substr(at, end - at);
      if (const auto quote = field.find('"'); quote != field.npos)
        return {at + quote,
                "a quote is within a field that does not begin with one: write the field in "
                "quotes, and its quotes twice"};
      at = end;
    }
    if (at == record.size()) return {};
    ++at;  // the comma
  }
}

}  // namespace

RecordFormat format_of(const std::filesystem::path& path) {
  const auto end = path.extension();
  if (end == ".tsv") return RecordFormat::tsv;
  if (end == ".csv") return RecordFormat::csv;
  if (end == ".jsonl" || end == ".ndjson") return RecordFormat::jsonl;
  return RecordFormat::text;
}

std::size_t record_length(std::string_view text, RecordFormat format, bool ends) {
  if (format == RecordFormat::csv) return csv_length(text, ends);
  const auto end = text.find('\n');
  if (end != text.npos) return end + 1;
  return ends ? text.size() : 0;
}

std::string_view without_line_end(std::string_view record) {
  if (record.ends_with('\n')) {
    record.remove_suffix(1);
    if (record.ends_with('\r')) record.remove_suffix(1);
  }
  return record;
}

Malformed split_fields(std::string_view record, RecordFormat format,
                       std::vector<std::string>& fields) {
  fields.clear();
  if (format == RecordFormat::csv) return split_csv(record, fields);
  for (std::size_t at = 0;;) {
    const auto end = std::min(record.find('\t', at), record.size());
    fields.emplace_back(record.substr(at, end - at));
    if (end == record.size()) return {};
    at = end + 1;
  }
}

}  // namespace echelon
