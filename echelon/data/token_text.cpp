#include "echelon/data/token_text.h"

#include <string_view>

namespace echelon {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD, for bytes that are no UTF-8

}  // namespace

void TokenText::drop_before(std::size_t count) {
  ids_.erase(ids_.begin(), ids_.begin() + std::ptrdiff_t(count));
  shown_ -= count;
}

// The new text is what the text of all tokens has behind that of those already shown.
std::string TokenText::take() {
  const std::span<const std::int32_t> all(ids_);
  const std::string before = tokenizer_.decode(all.first(shown_)), whole = tokenizer_.decode(all);
  shown_ = ids_.size();
  if (shown_ > kept) drop_before(shown_ - kept);
  return whole.size() > before.size() ? whole.substr(before.size()) : std::string();
}

std::string TokenText::add(std::int32_t id) {
  ids_.push_back(id);
  const bool waits =
      tokenizer_.decode(ids_).ends_with(replacement) && ids_.size() - shown_ < longest_character;
  return waits ? std::string() : take();
}

std::string TokenText::rest() { return shown_ < ids_.size() ? take() : std::string(); }

}  // namespace echelon
