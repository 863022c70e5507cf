#include "echelon/data/record_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string_view>
#include <utility>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/data/answers.h"

namespace echelon {
namespace {

std::uint64_t sum_of(std::string_view text) {
  return checksum(std::as_bytes(std::span(text.data(), text.size())));
}

using EncodeFields =
    std::function<void(const std::vector<std::string>& fields, TokenTexts& to, bool& cut)>;

RecordTexts encode(const EncodeRecords& what, const EncodeFields& one) {
  RecordTexts result;
  const auto count = std::ssize(what.numbers);
  // By sample, so that threads do not share anything.
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(count));
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::int64_t> cut = 0;
  result.texts = encode_texts(count, what.threads, [&](std::int64_t i, TokenTexts& to) {
    const auto record = what.numbers[std::size_t(i)];
    const auto fields = what.records.read(record, what.columns);
    std::vector<std::uint64_t> parts;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].find_first_not_of(" \t\r\n") == std::string::npos)
        throw InvalidArgument(fmt::format("{}: the {} is empty; give a text, or remove the line",
                                          what.records.place(record),
                                          what.records.columns()[std::size_t(what.columns[f])]));
      bytes += fields[f].size();
      parts.push_back(sum_of(fields[f]));
    }
    bool shortened = false;
    try {
      one(fields, to, shortened);
    } catch (const InvalidArgument& error) {  // of the tokeniser, which knows the text alone
      throw InvalidArgument(fmt::format("{}: {}", what.records.place(record), error.what()));
    }
    cut += shortened;
    sums[std::size_t(i)] = checksum(std::as_bytes(std::span(parts)));
  });
  result.bytes = bytes;
  result.cut = cut;
  result.digest = checksum(std::as_bytes(std::span(sums)));
  return result;
}

}  // namespace

RecordTexts encode_texts(const EncodeRecords& what) {
  return encode(what, [&](const std::vector<std::string>& fields, TokenTexts& to, bool& cut) {
    const auto encoded = [&](std::int64_t most) {
      const EncodeOptions options{.max_length = most};
      return fields.size() > 1 ? what.tokenizer.encode_pair(fields[0], fields[1], options)
                               : what.tokenizer.encode(fields[0], options);
    };
    const Encoding found = encoded(what.context);
    const auto tokens = std::ssize(found.ids);
    cut = tokens == what.context && std::ssize(encoded(0).ids) > tokens;
    const auto second = std::find(found.types.begin(), found.types.end(), 1);
    to.add(found.ids, second - found.types.begin());
  });
}

RecordTexts encode_plain(const EncodeRecords& what) {
  return encode(what, [&](const std::vector<std::string>& fields, TokenTexts& to, bool&) {
    std::vector<std::int32_t> ids;
    what.tokenizer.append(fields[0], ids);
    to.add(ids);
  });
}

RecordTexts encode_answers(const EncodeRecords& what) {
  const auto end = what.tokenizer.special().end;
  if (!end)
    throw InvalidArgument(
        fmt::format("the tokeniser {} has no end token, which follows an answer: name one as "
                    "\"eos_token\" in its tokenizer_config.json",
                    what.tokenizer.files().front().string()));
  const std::vector<std::int32_t> before = what.tokenizer.ends().before;
  return encode(what,
                [&, end = *end](const std::vector<std::string>& fields, TokenTexts& to, bool& cut) {
                  std::vector<std::int32_t> prompt = before, answer;
                  what.tokenizer.append(fields[0], prompt);
                  what.tokenizer.append(fields[1], answer);
                  answer.push_back(end);
                  cut = add_answer(to, prompt, answer, std::ssize(before), what.context + 1);
                });
}

}  // namespace echelon
