#include "echelon/data/encoded_text.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/corpus/token_cut.h"

namespace echelon {
namespace {

void require_utf8(std::string_view text, const std::string& source) {
  const auto valid = utf8_prefix(text);
  if (valid == text.size()) return;
  throw InvalidArgument(
      fmt::format("the text of {} is not UTF-8, which a tokeniser reads: line {} has the byte "
                  "0x{:02x}; convert the file",
                  source, std::count(text.begin(), text.begin() + std::ptrdiff_t(valid), '\n') + 1,
                  static_cast<unsigned char>(text[valid])));
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto feed = text.find('\n');
    const auto size = feed == text.npos ? text.size() : feed + 1;
    lines.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return lines;
}

// Parts of about 64 KiB, cut where the tokens do not show it. UTF-8.
std::vector<std::string_view> parts_of(const Tokenizer& tokenizer, std::string_view text) {
  constexpr std::size_t part_bytes = 1 << 16;
  const TextCut cut = cut_for(tokenizer);
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    std::size_t size = 0;
    for (auto end = part_bytes; size == 0 && end < text.size(); end *= 2) {
      auto whole = end;  // characters
      while ((static_cast<unsigned char>(text[whole]) & 0xC0) == 0x80) --whole;
      size = cut(text.substr(0, whole));
    }
    if (size == 0) size = text.size();
    parts.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return parts;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }

}  // namespace

std::vector<std::int32_t> encode_whole(const Tokenizer& tokenizer, std::string_view text,
                                       const std::string& source, int threads) {
  require_utf8(text, source);
  const auto parts = parts_of(tokenizer, text);
  const TokenTexts encoded =
      encode_texts(std::ssize(parts), threads, [&](std::int64_t i, TokenTexts& to) {
        std::vector<std::int32_t> ids;
        tokenizer.append(parts[std::size_t(i)], ids, /*continues=*/i > 0);
        to.add(ids);
      });
  std::vector<std::int32_t> all;
  all.reserve(std::size_t(encoded.tokens()));
  for (std::int64_t i = 0; i < encoded.size(); ++i) {
    const auto ids = encoded.ids(i);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

TextEnds text_ends(const Tokenizer& tokenizer, std::int64_t context) {
  auto [before, behind] = tokenizer.ends();
  const TextEnds ends{std::move(before), std::move(behind)};
  if (ends.size() >= context)
    throw InvalidArgument(fmt::format(
        "a context of {} tokens has no room for words between the {} special tokens of a text",
        context, ends.size()));
  return ends;
}

void add_in_parts(TokenTexts& to, std::span<const std::int32_t> words, const TextEnds& ends,
                  std::int64_t context) {
  const auto room = std::size_t(context - ends.size());
  for (std::size_t at = 0; at < words.size(); at += room) {
    const auto some = words.subspan(at, std::min(room, words.size() - at));
    std::vector<std::int32_t> text = ends.before;
    text.insert(text.end(), some.begin(), some.end());
    text.insert(text.end(), ends.behind.begin(), ends.behind.end());
    to.add(text);
  }
}

TokenTexts encode_lines(const Tokenizer& tokenizer, std::string_view text,
                        const std::string& source, std::int64_t context, int threads) {
  require_utf8(text, source);
  const TextEnds ends = text_ends(tokenizer, context);
  const auto lines = lines_of(text);
  return encode_texts(std::ssize(lines), threads, [&](std::int64_t i, TokenTexts& to) {
    const auto line = lines[std::size_t(i)];
    if (is_blank(line)) return;
    std::vector<std::int32_t> words;
    tokenizer.append(line.substr(0, line.find_last_not_of("\r\n") + 1), words);
    add_in_parts(to, words, ends, context);
  });
}

Batch EncodedWindows::get(std::span<const std::int64_t> indices) const {
  const auto samples = std::ssize(indices);
  const Batch batch{at::empty({samples, length_}, at::kLong),
                    at::empty({samples, length_}, at::kLong)};
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto begin = tokens_.begin() + indices[std::size_t(s)] * length_;
    std::copy(begin, begin + length_, batch.input.data_ptr<std::int64_t>() + s * length_);
    std::copy(begin + 1, begin + length_ + 1, batch.target.data_ptr<std::int64_t>() + s * length_);
  }
  return batch;
}

}  // namespace echelon
