#include "echelon/data/records/record_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"

namespace echelon {
namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr std::size_t least_read = std::size_t{1} << 18;

}  // namespace

RecordStream::RecordStream(const std::filesystem::path& path, const Records::Options& options)
    : file_(require_records_file(path)),
      parser_(require_records_format(path, options.format), options.header, options.longest) {
  read_more();
  if (text_.starts_with(byte_order_mark)) text_.erase(0, byte_order_mark.size());
  if (!find_record()) throw Corrupt(fmt::format("{} is empty: it has no record", path.string()));
  check_record();
  if (parser_.has_header() && !find_record())
    throw Corrupt(fmt::format("{} has a header and no record", path.string()));
  found_ = true;
}

// The last byte of what was read may be the carriage return of a line end.
std::size_t RecordStream::longest_unfinished() const { return parser_.longest() + 1; }

void RecordStream::read_more() {
  const auto had = text_.size();
  const auto wanted = std::min(std::max(had, least_read), longest_unfinished() + 1 - had);
  const auto n = std::min<std::uint64_t>(wanted, file_.size() - read_);
  text_.resize(had + n);
  file_.read(read_, std::as_writable_bytes(std::span(text_)).subspan(had));
  read_ += n;
}

// Goes on to the next record.
bool RecordStream::find_record() {
  const auto passed = std::string_view(text_).substr(begin_, size_);
  line_ += std::count(passed.begin(), passed.end(), '\n');
  begin_ += size_;
  for (;;) {
    const bool ends = read_ == file_.size();
    const auto left = std::string_view(text_).substr(begin_);
    size_ = record_length(left, parser_.format(), ends);
    if (size_ > 0) {
      record_ = without_line_end(left.substr(0, size_));
      return true;
    }
    if (ends) return false;
    if (left.size() > longest_unfinished()) {
      record_ = left;
      refuse(0, parser_.too_long());
    }
    text_.erase(0, std::exchange(begin_, 0));
    read_more();
  }
}

void RecordStream::check_record() {
  if (const auto valid = utf8_prefix(record_); valid < record_.size()) {
    const auto line = record_.rfind('\n', valid);
    refuse(valid, fmt::format("byte {} of the line, 0x{:02x}, is not UTF-8; convert the file",
                              valid - (line == record_.npos ? 0 : line + 1) + 1,
                              std::uint8_t(record_[valid])));
  }
  if (const auto wrong = parser_.check(record_); !wrong.what.empty()) refuse(wrong.at, wrong.what);
}

bool RecordStream::next(std::span<const int> columns, std::vector<std::string>& fields) {
  if (!std::exchange(found_, false) && !find_record()) return false;
  check_record();
  if (const auto wrong = parser_.read(record_, columns, fields); !wrong.what.empty())
    refuse(wrong.at, wrong.what);
  return true;
}

std::string RecordStream::place() const {
  return fmt::format("{}, line {}", path().string(), line_);
}

void RecordStream::refuse(std::size_t offset, std::string_view what) const {
  const auto before = record_.substr(0, offset);
  throw Corrupt(fmt::format("{}, line {}: {}", path().string(),
                            line_ + std::count(before.begin(), before.end(), '\n'), what));
}

}  // namespace echelon
