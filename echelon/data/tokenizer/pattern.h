// Where a pattern matches in a text: literal strings, the patterns of GPT-2 and Llama 3 by hand
// (about a hundred times as fast as an engine), and all others by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace echelon::tok {

struct ByteRange {
  std::uint32_t begin, end;
};

class Pattern {
 public:
  virtual ~Pattern() = default;
  // Appends all matches, from left to right. Thread-safe. Throws InvalidArgument for a text in
  // which the pattern takes too many steps.
  virtual void matches(std::string_view text, std::vector<ByteRange>& out) const = 0;
};

// Not empty.
std::unique_ptr<Pattern> literal_pattern(std::string text);
// A regular expression as Oniguruma reads it. Throws InvalidArgument with `where` if it is wrong or
// uses what the engines read differently, or if the build has no PCRE2.
std::unique_ptr<Pattern> regular_expression(const std::string& expression,
                                            const std::string& where);
// By hand; nothing if the expression is none of those known.
std::unique_ptr<Pattern> known_pattern(std::string_view expression);
// What the pre-tokeniser ByteLevel splits by.
extern const std::string_view gpt2_expression;
// By PCRE2; for regular_expression() and tests.
std::unique_ptr<Pattern> pcre2_pattern(const std::string& expression, const std::string& where);

}  // namespace echelon::tok
