#include "echelon/data/corpus/token_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/data/corpus/token_documents.h"

namespace echelon {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of a shard are not swapped");

constexpr std::string_view magic = "ECTOKENS", end_magic = "ECTOKEND";
constexpr std::uint32_t version = 1;
constexpr std::size_t header_bytes = 16, footer_bytes = 32, number_bytes = 8;
constexpr std::size_t sum_to_end = 16;  // the checksum and the last magic are not summed

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + number_bytes - 1) / number_bytes * number_bytes;
}

std::uint64_t combined(std::uint64_t sum, std::span<const std::byte> block) {
  const std::array<std::uint64_t, 2> both = {sum, checksum(block)};
  return checksum(std::as_bytes(std::span(both)));
}

// Widens tokens; returns the largest.
template <class Token>
std::uint64_t widen(const std::byte* from, std::span<std::int64_t> out) {
  Token most = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, from + i * sizeof(Token), sizeof(Token));
    most = std::max(most, token);
    out[i] = static_cast<std::int64_t>(token);
  }
  return most;
}

}  // namespace

void BlockChecksum::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (rest_.empty() && bytes.size() >= block) {
      sum_ = combined(sum_, bytes.first(block));
      bytes = bytes.subspan(block);
      continue;
    }
    const auto n = std::min(block - rest_.size(), bytes.size());
    rest_.insert(rest_.end(), bytes.begin(), bytes.begin() + std::ptrdiff_t(n));
    bytes = bytes.subspan(n);
    if (rest_.size() < block) continue;
    sum_ = combined(sum_, rest_);
    rest_.clear();
  }
}

std::uint64_t BlockChecksum::value() const { return rest_.empty() ? sum_ : combined(sum_, rest_); }

TokenShardWriter::TokenShardWriter(FileWriter& file, int token_bytes)
    : file_(file), token_bytes_(token_bytes) {
  write(bytes_of(magic));
  write(bytes_of(version));
  write(bytes_of(static_cast<std::uint32_t>(token_bytes)));
}

void TokenShardWriter::write(std::span<const std::byte> bytes) {
  file_.write(bytes);
  sum_.add(bytes);
}

void TokenShardWriter::add(std::span<const std::int32_t> tokens) {
  tokens_ += std::ssize(tokens);
  if (token_bytes_ == sizeof(std::int32_t)) return write(std::as_bytes(tokens));
  narrow_.resize(tokens.size() * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::uint16_t>(tokens[i]);
    std::memcpy(narrow_.data() + i * sizeof token, &token, sizeof token);
  }
  write(narrow_);
}

void TokenShardWriter::end_document() { ends_.push_back(static_cast<std::uint64_t>(tokens_)); }

std::uint64_t TokenShardWriter::bytes() const {
  return header_bytes + padded(static_cast<std::uint64_t>(tokens_) * std::uint64_t(token_bytes_)) +
         ends_.size() * number_bytes + footer_bytes;
}

ShardTotals TokenShardWriter::finish() {
  const auto token_bytes = static_cast<std::uint64_t>(tokens_) * std::uint64_t(token_bytes_);
  constexpr std::array<std::byte, number_bytes> zeros = {};
  write(std::span(zeros).first(padded(token_bytes) - token_bytes));
  write(std::as_bytes(std::span(ends_)));
  write(bytes_of(static_cast<std::uint64_t>(tokens_)));
  write(bytes_of(std::uint64_t{ends_.size()}));
  const std::uint64_t sum = sum_.value();
  file_.write(bytes_of(sum));
  file_.write(bytes_of(end_magic));
  return {tokens_, std::ssize(ends_), sum};
}

TokenShard::TokenShard(const std::filesystem::path& path) : file_(path) {
  const auto bytes = file_.bytes();
  const auto text = file_.text();
  if (bytes.size() < header_bytes + footer_bytes)
    refuse(bytes.size(), "the file ends here, before a shard of a corpus can");
  if (!text.starts_with(magic))
    refuse(0, "this is no shard of a corpus: it does not begin with ECTOKENS");
  std::uint32_t found[2];
  std::memcpy(found, bytes.data() + magic.size(), sizeof found);
  if (found[0] != version)
    refuse(8, fmt::format("the version is {}, and this program reads {}", found[0], version));
  if (found[1] != 2 && found[1] != 4)
    refuse(12, fmt::format("a token has {} bytes, not 2 or 4", found[1]));
  token_bytes_ = int(found[1]);
  if (!text.ends_with(end_magic))
    refuse(bytes.size() - end_magic.size(), "the file does not end with ECTOKEND: it was cut");
  const auto footer = bytes.size() - footer_bytes;
  const std::uint64_t tokens = number(footer), documents = number(footer + 8),
                      room = footer - header_bytes;
  if (tokens > room / found[1] || documents > room / number_bytes ||
      padded(tokens * found[1]) + documents * number_bytes != room)
    refuse(footer, fmt::format("{} tokens and {} documents do not fill the {} bytes of the file",
                               tokens, documents, bytes.size()));
  totals_ = {std::int64_t(tokens), std::int64_t(documents), number(footer + 16)};
  ends_ = footer - documents * number_bytes;
  if (documents == 0 ? tokens != 0 : number(footer - number_bytes) != tokens)
    refuse(ends_, fmt::format("the last document does not end with the {} tokens", tokens));
}

std::uint64_t TokenShard::number(std::size_t offset) const {
  std::uint64_t value;
  std::memcpy(&value, file_.bytes().data() + offset, sizeof value);
  return value;
}

void TokenShard::refuse(std::size_t offset, const std::string& what) const {
  throw Corrupt(fmt::format("{}: byte {}: {}", path().string(), offset, what));
}

TokenShard::Extent TokenShard::extent(std::int64_t document) const {
  if (document < 0 || document >= totals_.documents)
    throw InvalidArgument(
        fmt::format("document {} was asked for of a shard of {}", document, totals_.documents));
  const auto at = ends_ + std::size_t(document) * number_bytes;
  const Extent found{document == 0 ? 0 : number(at - number_bytes), number(at)};
  if (found.begin > found.end || found.end > std::uint64_t(totals_.tokens))
    refuse(at, fmt::format("document {} has tokens {} to {} of {}", document, found.begin,
                           found.end, totals_.tokens));
  return found;
}

std::int64_t TokenShard::length(std::int64_t document) const {
  const auto [begin, end] = extent(document);
  return std::int64_t(end - begin);
}

void TokenShard::read(std::int64_t document, std::int64_t first, std::int64_t vocab,
                      std::span<std::int64_t> out) const {
  file_.require_unchanged();
  const auto [begin, end] = extent(document);
  require_within(first, out.size(), std::int64_t(end - begin));
  const auto at = header_bytes + (begin + std::uint64_t(first)) * std::uint64_t(token_bytes_);
  const std::byte* const from = file_.bytes().data() + at;
  const auto most =
      token_bytes_ == 2 ? widen<std::uint16_t>(from, out) : widen<std::uint32_t>(from, out);
  if (out.empty() || most < std::uint64_t(vocab)) return;
  const auto wrong =
      std::find_if(out.begin(), out.end(), [&](auto token) { return token >= vocab; });
  refuse(at + std::size_t(wrong - out.begin()) * std::size_t(token_bytes_),
         fmt::format("the token {} is not below {}, the size of the vocabulary", *wrong, vocab));
}

bool TokenShard::add_block(std::int64_t block, BlockChecksum& sum) const {
  file_.require_unchanged();
  const auto summed = file_.bytes().first(file_.bytes().size() - sum_to_end);
  const auto begin = std::size_t(block) * BlockChecksum::block;
  if (begin >= summed.size()) return false;
  sum.add(summed.subspan(begin, std::min(BlockChecksum::block, summed.size() - begin)));
  return true;
}

void TokenShard::verify(const BlockChecksum& sum) const {
  if (sum.value() != totals_.checksum)
    refuse(file_.bytes().size() - sum_to_end,
           fmt::format("the checksum is {:016x}, and that of the bytes before it is {:016x}; make "
                       "the corpus again",
                       totals_.checksum, sum.value()));
  for (std::int64_t i = 0; i < totals_.documents; ++i) extent(i);
}

}  // namespace echelon
