// Tokens that are found in a text before it is split: special ones such as [MASK], and words that
// were added to a vocabulary. Of several that begin at the same place, the longest counts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace echelon::tok {

struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool special = false;      // decode() leaves it out
  bool normalized = true;    // is looked for in the normalised text, and is normalised itself
  bool single_word = false;  // only between characters that are in no word
  bool strip_left = false, strip_right = false;  // with the white space beside it
};

class AddedTokenFinder {
 public:
  struct Found {
    std::uint32_t begin, end;
    std::int32_t id;
  };

  // `text` is what is looked for; empty ones are never found.
  void add(std::string_view text, const AddedToken& token);
  bool empty() const { return nodes_.size() == 1; }
  // Appends what is found, from left to right.
  void find(std::string_view text, std::vector<Found>& out) const;

 private:
  struct Rules {
    std::int32_t id;
    bool single_word, strip_left, strip_right;
  };
  struct Node {                                                   // of a trie of bytes
    std::vector<std::pair<std::uint8_t, std::int32_t>> children;  // sorted
    std::int32_t token = -1;                                      // in rules_
  };
  std::int32_t child(std::int32_t node, std::uint8_t byte) const;
  // The token at `at` and its end; -1: none.
  std::pair<std::int32_t, std::size_t> longest(std::string_view text, std::size_t at) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Rules> rules_;
  std::array<std::int32_t, 256> first_ = filled();  // children of the root
  static std::array<std::int32_t, 256> filled() {
    std::array<std::int32_t, 256> none;
    none.fill(-1);
    return none;
  }
};

}  // namespace echelon::tok
