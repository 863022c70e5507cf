#include "echelon/data/tokenizer/added_tokens.h"

#include <algorithm>

#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {
namespace {

bool ends_with(std::string_view text, int kind) {
  return !text.empty() &&
         UnicodeClasses::get().has(decode_utf8_before(text.data() + text.size()).code_point, kind);
}

bool begins_with(std::string_view text, int kind) {
  return !text.empty() && UnicodeClasses::get().has(decode_utf8(text.data()).code_point, kind);
}

}  // namespace

std::int32_t AddedTokenFinder::child(std::int32_t node, std::uint8_t byte) const {
  const auto& children = nodes_[std::size_t(node)].children;
  const auto found =
      std::ranges::lower_bound(children, byte, {}, [](const auto& c) { return c.first; });
  return found != children.end() && found->first == byte ? found->second : -1;
}

void AddedTokenFinder::add(std::string_view text, const AddedToken& token) {
  if (text.empty()) return;
  std::int32_t node = 0;
  for (const char c : text) {
    const auto byte = std::uint8_t(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = std::int32_t(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[std::size_t(node)].children;
      children.insert(
          std::ranges::lower_bound(children, byte, {}, [](const auto& one) { return one.first; }),
          {byte, next});
      if (node == 0) first_[byte] = next;
    }
    node = next;
  }
  nodes_[std::size_t(node)].token = std::int32_t(rules_.size());
  rules_.push_back({token.id, token.single_word, token.strip_left, token.strip_right});
}

std::pair<std::int32_t, std::size_t> AddedTokenFinder::longest(std::string_view text,
                                                               std::size_t at) const {
  std::pair<std::int32_t, std::size_t> best{-1, at};
  std::int32_t node = first_[std::uint8_t(text[at])];
  while (node >= 0) {
    ++at;
    if (nodes_[std::size_t(node)].token >= 0) best = {nodes_[std::size_t(node)].token, at};
    if (at == text.size()) break;
    node = child(node, std::uint8_t(text[at]));
  }
  return best;
}

void AddedTokenFinder::find(std::string_view text, std::vector<Found>& out) const {
  if (empty()) return;
  std::size_t done = 0;  // what is before belongs to tokens that were found
  for (std::size_t at = 0; at < text.size();) {
    if (first_[std::uint8_t(text[at])] < 0) {
      ++at;
      continue;
    }
    const auto [token, match_end] = longest(text, at);
    if (token < 0) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = match_end;
    at = match_end;
    const Rules& rules = rules_[std::size_t(token)];
    if (rules.single_word &&
        (ends_with(text.substr(0, begin), word) || begins_with(text.substr(end), word)))
      continue;
    while (rules.strip_left && begin > done && ends_with(text.substr(0, begin), space))
      begin -= decode_utf8_before(text.data() + begin).size;
    while (rules.strip_right && begins_with(text.substr(end), space))
      end += decode_utf8(text.data() + end).size;
    // White space behind the token before this one may have begun it.
    if (begin < done) begin = std::min(done, end);
    out.push_back({std::uint32_t(begin), std::uint32_t(end), rules.id});
    done = end;
    at = std::max(at, done);
  }
}

}  // namespace echelon::tok
