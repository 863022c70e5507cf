#include "echelon/data/tokenizer/pattern.h"

#include <cstring>

namespace echelon::tok {
namespace {

class Literal : public Pattern {
 public:
  explicit Literal(std::string text) : text_(std::move(text)) {}
  void matches(std::string_view text, std::vector<ByteRange>& out) const override {
    for (std::size_t at = text.find(text_); at != text.npos;
         at = text.find(text_, at + text_.size()))
      out.push_back({std::uint32_t(at), std::uint32_t(at + text_.size())});
  }

 private:
  std::string text_;
};

}  // namespace

std::unique_ptr<Pattern> literal_pattern(std::string text) {
  return std::make_unique<Literal>(std::move(text));
}

std::unique_ptr<Pattern> regular_expression(const std::string& expression,
                                            const std::string& where) {
  if (auto known = known_pattern(expression)) return known;
  return pcre2_pattern(expression, where);
}

}  // namespace echelon::tok
