// Many texts as tokens, in compact form: four bytes a token and twelve a text.
//
//   const TokenTexts texts = encode_texts(records.size(), threads, [&](auto i, TokenTexts& to) {
//     to.add(tokenizer.encode(text(i)).ids);
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace echelon {

class TokenTexts {
 public:
  std::int64_t size() const { return std::ssize(ends_); }
  std::int64_t tokens() const { return std::ssize(ids_); }  // of all texts
  std::int64_t longest() const { return longest_; }         // tokens

  std::span<const std::int32_t> ids(std::int64_t text) const;
  // The token at which the second part of a text begins: the second text of a pair, an answer. The
  // number of its tokens if it has none.
  std::int64_t second(std::int64_t text) const { return seconds_[std::size_t(text)]; }

  void add(std::span<const std::int32_t> ids) { add(ids, std::ssize(ids)); }
  void add(std::span<const std::int32_t> ids, std::int64_t second);
  void add(const TokenTexts& texts);

 private:
  std::vector<std::int32_t> ids_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::uint32_t> seconds_;
  std::int64_t longest_ = 0;
};

// The texts that encode(0, to), …, encode(count - 1, to) add, in this order. Several threads call
// `encode`, each with a `to` of its own. If calls throw, the exception of the first of them is
// thrown.
TokenTexts encode_texts(std::int64_t count, int threads,
                        const std::function<void(std::int64_t i, TokenTexts& to)>& encode);

}  // namespace echelon
