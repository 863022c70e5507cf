#include "echelon/data/corpus/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

bool is_text(const fs::path& file) { return format_of(file) == RecordFormat::text; }

bool is_visible_ascii(char c) { return c > ' ' && c < '\x7f'; }

}  // namespace

std::size_t whole_lines(std::string_view text) {
  const auto feed = text.rfind('\n');
  return feed == text.npos ? 0 : feed + 1;
}

std::size_t whole_words(std::string_view text) {
  for (auto at = text.size(); at-- > 1;)
    if ((text[at] == ' ' || text[at] == '\n') && is_visible_ascii(text[at - 1])) return at;
  return 0;
}

TextSource::TextSource(std::vector<fs::path> files, Options options)
    : files_(std::move(files)), options_(std::move(options)) {
  bool records = false;
  for (const auto& file : files_) {
    std::error_code error;
    if (!fs::is_regular_file(file, error))
      throw InvalidArgument(fmt::format("there is no file {} to read text from", file.string()));
    if (is_text(file)) continue;
    records = true;
    if (options_.column.empty())
      throw InvalidArgument(
          fmt::format("{} has records: name the column of the text, as in --text {}", file.string(),
                      RecordStream(file, {.header = options_.header}).columns().front()));
    RecordStream(file, {.header = options_.header}).column(options_.column);
  }
  if (!records && !options_.column.empty())
    throw InvalidArgument(fmt::format(
        "the column {} is given, and no file has records: their names end with .tsv, .csv or .jsonl",
        options_.column));
}

TextSource::~TextSource() = default;

bool TextSource::next(TextBatch& batch) {
  batch.pieces.clear();
  in_batch_ = 0;
  while (file_ < files_.size() && in_batch_ < options_.batch_bytes) {
    if (!text_ && !records_) open();
    if (add(batch)) continue;
    text_.reset();
    records_.reset();
    ++file_;
  }
  return !batch.pieces.empty();
}

std::string TextSource::place(const TextPiece& piece) const {
  const std::string file = files_[piece.file].string();
  if (piece.is_record) return fmt::format("{}, line {}", file, piece.at);
  return piece.continues ? fmt::format("{}, from byte {} on", file, piece.at) : file;
}

void TextSource::open() {
  const auto& file = files_[file_];
  if (is_text(file)) {
    text_ = std::make_unique<InputFile>(file);
    waiting_.clear();
    offset_ = checked_ = 0;
    ended_ = false;
    return;
  }
  records_ = std::make_unique<RecordStream>(
      file, Records::Options{.format = {}, .header = options_.header});
  column_ = records_->column(options_.column);
}

bool TextSource::add(TextBatch& batch) {
  const auto had = batch.pieces.size();
  const bool more = text_ ? add_text(batch) : add_record(batch);
  if (batch.pieces.size() == had) return more;
  in_batch_ += batch.pieces.back().text.size() + 1;  // also empty documents fill a batch
  bytes_ += std::ssize(batch.pieces.back().text);
  return more;
}

void TextSource::read_more() {
  const auto had = waiting_.size();
  const auto at = offset_ + had;
  const auto n = std::min<std::uint64_t>(std::max(had, options_.batch_bytes), text_->size() - at);
  waiting_.resize(had + n);
  text_->read(at, std::as_writable_bytes(std::span(waiting_)).subspan(had));
  checked_ += utf8_prefix(std::string_view(waiting_).substr(checked_));
  // The last character that was read may be incomplete: it is checked again with the next bytes.
  constexpr std::size_t longest_character = 4;
  const auto unchecked = waiting_.size() - checked_;
  if (unchecked == 0 || (at + n < text_->size() && unchecked < longest_character)) return;
  throw Corrupt(fmt::format("{}: byte {}, 0x{:02x}, is not UTF-8; convert the file",
                            files_[file_].string(), offset_ + checked_,
                            std::uint8_t(waiting_[checked_])));
}

bool TextSource::add_text(TextBatch& batch) {
  if (ended_) return false;
  std::size_t size = 0;
  // A cut needs text behind it, so the end of the file is none.
  while (offset_ + waiting_.size() < text_->size()) {
    if (waiting_.size() >= options_.batch_bytes &&
        (size = options_.cut(std::string_view(waiting_).substr(0, checked_))) > 0)
      break;
    read_more();
  }
  if (size == 0) {
    size = waiting_.size();
    ended_ = true;
  }
  batch.pieces.push_back({.text = waiting_.substr(0, size),
                          .continues = offset_ > 0,
                          .ends = ended_,
                          .file = file_,
                          .at = offset_});
  waiting_.erase(0, size);
  offset_ += size;
  checked_ -= size;
  return true;
}

bool TextSource::add_record(TextBatch& batch) {
  if (!records_->next(std::array{column_}, fields_)) return false;
  batch.pieces.push_back({.text = std::move(fields_.front()),
                          .ends = true,
                          .is_record = true,
                          .file = file_,
                          .at = std::uint64_t(records_->line())});
  return true;
}

}  // namespace echelon
