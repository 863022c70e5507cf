// Files of tokenisers. The first byte of an input chooses the format; zero bytes separate the files
// and, last, a text. What is accepted encodes that text and others, with spans that must lie in it,
// and decodes what came out.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/decoder.h"
#include "echelon/data/tokenizer/parts.h"

namespace {

using echelon::TokenSpan;
using echelon::tok::Parts;

[[noreturn]] void complain(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// The input up to the next zero byte, which is removed with it.
std::string next(std::string_view& input) {
  const auto end = std::min(input.find('\0'), input.size());
  std::string part(input.substr(0, end));
  input.remove_prefix(std::min(end + 1, input.size()));
  return part;
}

void require_token(const Parts& parts, std::int32_t id) {
  if (!parts.model_tokens.has(id) && !parts.added.has(id)) complain("an id that no token has");
}

// What is put around texts and behind them.
void check_template(const Parts& parts) {
  for (const auto* pieces : {&parts.post_processor.single, &parts.post_processor.pair})
    for (const auto& piece : *pieces)
      for (const auto id : piece.ids) require_token(parts, id);
  if (parts.special.padding) require_token(parts, *parts.special.padding);
}

void use(const Parts& parts, const std::string& text) {
  echelon::tok::Scratch scratch;
  std::vector<std::int32_t> ids, again;
  std::vector<TokenSpan> spans;
  try {
    parts.encode(text, scratch, ids, &spans);
    parts.encode(text, scratch, again, nullptr);
  } catch (const echelon::InvalidArgument&) {  // a pattern that takes too many steps
    return;
  }
  if (ids != again) complain("a text has other ids the second time");
  if (ids.size() != spans.size()) complain("a token without a span");
  for (const TokenSpan& span : spans)
    if (span.begin > span.end || span.end > text.size()) complain("a span outside of the text");
  std::vector<std::string> tokens;
  for (const auto id : ids) {
    require_token(parts, id);
    tokens.emplace_back(parts.model_tokens.has(id) ? parts.model_tokens.text(id)
                                                   : parts.added.text(id));
  }
  if (tokens.empty()) return;
  try {
    for (const auto& step : parts.decoder) step->apply(tokens);
  } catch (const echelon::InvalidArgument&) {
    return;
  }
  std::string decoded;
  for (const std::string& token : tokens) decoded += token;
  if (echelon::utf8_prefix(decoded) != decoded.size()) complain("a decoded text is not UTF-8");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  std::string_view input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  Parts parts;
  try {
    const std::string first = next(input), second = next(input);
    const auto beside = [&](std::string config) {
      return echelon::tok::SideFiles{.config = {std::move(config), "config"},
                                     .special_map = {next(input), "map"},
                                     .added = {next(input), "added"}};
    };
    if (bytes[0] % 4 == 0)
      echelon::tok::read_bert_vocabulary({first, "vocab.txt"}, beside(second), parts);
    else if (bytes[0] % 4 == 1)
      echelon::tok::read_gpt2_files({first, "vocab.json"}, {second, "merges.txt"},
                                    beside(next(input)), parts);
    else
      echelon::tok::read_tokenizer_json(first, "tokenizer.json", parts);
    if (bytes[0] % 4 == 3) echelon::tok::find_special_tokens(beside(second), parts);
  } catch (const echelon::InvalidArgument&) {
    return 0;
  } catch (const echelon::Corrupt&) {
    return 0;
  }
  check_template(parts);
  use(parts, echelon::tok::valid_utf8(input));
  use(parts,
      "A text's  words, na\xC3\xAFve \xE2\x96\x81 caf\x65\xCC\x81\n\xE4\xB8\xAD 12345 <end>[MASK]");
  return 0;
}
