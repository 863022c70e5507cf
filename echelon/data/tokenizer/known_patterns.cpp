// The patterns of GPT-2, Llama 3 (also GPT-4's) and Qwen 2, matched by hand. Each alternative of
// the expression is a few lines below, in its order. Every text is covered: a match begins where
// the one before ends.
#include <array>
#include <cstring>

#include "echelon/data/tokenizer/pattern.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {

const std::string_view gpt2_expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view llama3_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr int separating = letter | number | space;

// Reads code points with their class among letter, number and space; 0: any other.
class Scanner {
 public:
  explicit Scanner(std::string_view text)
      : at_(text.data()), end_(text.data() + text.size()), classes_(UnicodeClasses::get()) {}

  struct Point {
    int kind;
    std::uint32_t size;
  };

  bool done(const char* at) const { return at == end_; }
  Point point(const char* at) const {
    const Decoded point = decode_utf8(at);
    return {classes_.of(point.code_point) & separating, point.size};
  }
  // The end of the run of code points of a kind.
  const char* run(const char* at, int kind) const {
    while (at != end_) {
      const Point next = point(at);
      if (next.kind != kind) break;
      at += next.size;
    }
    return at;
  }
  bool has(const char* at, char c) const { return at != end_ && *at == c; }

  // The end of "'s", "'t", "'re", "'ve", "'m", "'ll" or "'d"; null: none is here. With `any_case`
  // also in upper case, and U+017F is an s.
  const char* contraction(const char* at, bool any_case) const {
    if (*at != '\'' || end_ - at < 2) return nullptr;
    const auto lower = [&](char c) { return any_case && c >= 'A' && c <= 'Z' ? char(c + 32) : c; };
    const char first = lower(at[1]);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (end_ - at < 3) return nullptr;
    if (any_case && std::memcmp(at + 1, "\xC5\xBF", 2) == 0) return at + 3;
    const char second = lower(at[2]);
    const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                     (first == 'l' && second == 'l');
    return two ? at + 3 : nullptr;
  }

  // \s+(?!\S)|\s+ for the run of white space [at, run_end): before other text, its last code point
  // stays for the next match.
  const char* white_space(const char* at, const char* run_end) const {
    if (run_end == end_) return run_end;
    const char* last = run_end - decode_utf8_before(run_end).size;
    return last == at ? run_end : last;
  }

  const char* begin() const { return at_; }

 private:
  const char *at_, *end_;
  const UnicodeClasses& classes_;
};

const char* match_gpt2(const Scanner& text, const char* at) {
  if (const char* end = text.contraction(at, false)) return end;
  const Scanner::Point first = text.point(at);
  if (first.kind != space) return text.run(at + first.size, first.kind);
  if (*at == ' ' && !text.done(at + 1)) {
    const Scanner::Point second = text.point(at + 1);
    if (second.kind != space) return text.run(at + 1 + second.size, second.kind);
  }
  return text.white_space(at, text.run(at, space));
}

const char* line_ends(const Scanner& text, const char* at) {
  while (text.has(at, '\r') || text.has(at, '\n')) ++at;
  return at;
}

const char* match_llama3(const Scanner& text, const char* at, int most_digits) {
  if (const char* end = text.contraction(at, true)) return end;
  const Scanner::Point first = text.point(at);
  const char* next = at + first.size;
  if (first.kind == letter) return text.run(next, letter);
  if (first.kind == number) {
    for (int digits = 1; digits < most_digits && !text.done(next); ++digits) {
      const Scanner::Point digit = text.point(next);
      if (digit.kind != number) break;
      next += digit.size;
    }
    return next;
  }
  const int second = text.done(next) ? space : text.point(next).kind;
  if (second == letter && *at != '\r' && *at != '\n') return text.run(next, letter);
  if (first.kind == 0) return line_ends(text, text.run(next, 0));
  if (*at == ' ' && second == 0) return line_ends(text, text.run(next, 0));
  const char* run_end = text.run(at, space);
  for (const char* last = run_end; last != at; --last)
    if (last[-1] == '\r' || last[-1] == '\n') return last;
  return text.white_space(at, run_end);
}

template <typename Match>
class Known : public Pattern {
 public:
  explicit Known(Match match) : match_(match) {}
  void matches(std::string_view text, std::vector<ByteRange>& out) const override {
    const Scanner scanner(text);
    for (const char* at = scanner.begin(); !scanner.done(at);) {
      const char* end = match_(scanner, at);
      out.push_back({std::uint32_t(at - scanner.begin()), std::uint32_t(end - scanner.begin())});
      at = end;
    }
  }

 private:
  Match match_;
};

template <typename Match>
std::unique_ptr<Pattern> by_hand(Match match) {
  return std::make_unique<Known<Match>>(match);
}

}  // namespace

std::unique_ptr<Pattern> known_pattern(std::string_view expression) {
  if (expression == gpt2_expression)
    return by_hand([](const Scanner& text, const char* at) { return match_gpt2(text, at); });
  if (expression == llama3_expression)
    return by_hand([](const Scanner& text, const char* at) { return match_llama3(text, at, 3); });
  if (expression == qwen2_expression)
    return by_hand([](const Scanner& text, const char* at) { return match_llama3(text, at, 1); });
  return nullptr;
}

}  // namespace echelon::tok
