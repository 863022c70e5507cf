#include "echelon/data/tokenizer/decoder.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "echelon/base/utf8.h"
#include "echelon/data/tokenizer/byte_alphabet.h"

namespace echelon::tok {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

template <typename F>
class Step : public DecoderStep {
 public:
  explicit Step(F function) : function_(std::move(function)) {}
  void apply(std::vector<std::string>& tokens) const override { function_(tokens); }

 private:
  F function_;
};

template <typename F>
std::unique_ptr<DecoderStep> step(F function) {
  return std::make_unique<Step<F>>(std::move(function));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

// Spaces that English does not have.
void clean_up_spaces(std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> rules = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : rules) replace_all(text, from, to);
}

// The byte that "<0x41>" stands for.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return std::nullopt;
  unsigned value = 0;
  const auto read = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (read.ec != std::errc() || read.ptr != token.data() + 5) return std::nullopt;
  return char(value);
}

void join_fallback_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (utf8_prefix(bytes) == bytes.size())
      out.push_back(bytes);
    else
      out.insert(out.end(), bytes.size(), std::string(replacement));
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes.push_back(*byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

void join_bytes(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const auto plain = alphabet_to_bytes(token);
    bytes += plain ? *plain : token;
  }
  tokens = {valid_utf8(bytes)};
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t good = utf8_prefix(bytes);
    text += bytes.substr(0, good);
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    text += replacement;
    // One replacement for the longest beginning of a code point, which lacks its end.
    std::size_t bad = 1;
    for (; bad < 4 && bad < bytes.size(); ++bad) {
      std::string longer(bytes.substr(0, bad + 1));
      bool beginning = false;
      for (std::size_t more = 0; more < 3 && !beginning; ++more) {
        longer.push_back(char(0x80));
        beginning = utf8_prefix(longer) == longer.size();
        if (!beginning) {
          longer.back() = char(0xBF);
          beginning = utf8_prefix(longer) == longer.size();
        }
      }
      if (!beginning) break;
    }
    bytes.remove_prefix(bad);
  }
  return text;
}

std::unique_ptr<DecoderStep> byte_level_decoder() { return step(join_bytes); }
std::unique_ptr<DecoderStep> byte_fallback_decoder() { return step(join_fallback_bytes); }
std::unique_ptr<DecoderStep> fuse_decoder() {
  return step([](std::vector<std::string>& tokens) { tokens = {joined(tokens)}; });
}

std::unique_ptr<DecoderStep> word_piece_decoder(std::string prefix, bool clean_up) {
  return step([prefix = std::move(prefix), clean_up](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix))
        tokens[i].erase(0, prefix.size());
      else if (i > 0)
        tokens[i].insert(0, " ");
      if (clean_up) clean_up_spaces(tokens[i]);
    }
  });
}

std::unique_ptr<DecoderStep> bpe_decoder(std::string suffix) {
  return step([suffix = std::move(suffix)](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
  });
}

std::unique_ptr<DecoderStep> strip_decoder(std::string character, std::int64_t begin,
                                           std::int64_t end) {
  return step([character = std::move(character), begin, end](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      for (std::int64_t i = 0; i < begin && token.starts_with(character); ++i)
        token.erase(0, character.size());
      for (std::int64_t i = 0; i < end && token.ends_with(character); ++i)
        token.erase(token.size() - character.size());
    }
  });
}

std::unique_ptr<DecoderStep> replace_decoder(std::shared_ptr<const Pattern> pattern,
                                             std::string content) {
  return step([pattern = std::move(pattern),
               content = std::move(content)](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      std::vector<ByteRange> found;
      pattern->matches(token, found);
      for (auto match = found.rbegin(); match != found.rend(); ++match)
        token.replace(match->begin, match->end - match->begin, content);
    }
  });
}

}  // namespace echelon::tok
