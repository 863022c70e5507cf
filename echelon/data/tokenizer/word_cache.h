// Remembers the tokens of words: nearly all words of a text have occurred before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "echelon/data/tokenizer/vocabulary.h"
#include "echelon/data/tokenizer/word_model.h"

namespace echelon::tok {

class WordCache {
 public:
  struct Tokens {
    const std::int32_t* ids;
    const std::uint32_t* sizes;
    std::size_t count;
  };

  // The tokens of a word, by `model` if it is not here. Valid until the next call.
  Tokens get(std::string_view word, const WordModel& model, WordScratch& scratch) {
    const std::uint64_t hash = hash_bytes(word);
    if (slots_.empty()) clear();
    std::size_t at = hash & (slot_count - 1);
    for (; slots_[at].used; at = (at + 1) & (slot_count - 1)) {
      const Slot& slot = slots_[at];
      if (slot.hash == std::uint32_t(hash >> 32) && slot.size == word.size() &&
          std::memcmp(bytes_.data() + slot.bytes, word.data(), word.size()) == 0)
        return {known_.ids.data() + slot.first, known_.sizes.data() + slot.first, slot.count};
    }
    return add(word, hash, at, model, scratch);
  }

 private:
  static constexpr std::size_t slot_count = 1 << 16;
  static constexpr std::size_t most_words = slot_count / 2;
  static constexpr std::size_t longest = 64;  // longer words hardly occur twice

  struct Slot {
    std::uint32_t hash;
    std::uint32_t bytes, first;
    std::uint16_t size, count;
    bool used;
  };

  void clear() {
    slots_.assign(slot_count, {});
    bytes_.clear();
    known_.clear();
    words_ = 0;
  }

  Tokens add(std::string_view word, std::uint64_t hash, std::size_t at, const WordModel& model,
             WordScratch& scratch) {
    if (word.size() > longest) {
      long_word_.clear();
      model.encode(word, long_word_, scratch);
      return {long_word_.ids.data(), long_word_.sizes.data(), long_word_.ids.size()};
    }
    if (words_ == most_words) {  // start again with what the text has now
      clear();
      at = hash & (slot_count - 1);
    }
    const std::size_t first = known_.ids.size(), bytes = bytes_.size();
    model.encode(word, known_, scratch);
    const std::size_t count = known_.ids.size() - first;
    bytes_.insert(bytes_.end(), word.begin(), word.end());
    slots_[at] = {std::uint32_t(hash >> 32),  std::uint32_t(bytes), std::uint32_t(first),
                  std::uint16_t(word.size()), std::uint16_t(count), true};
    ++words_;
    return {known_.ids.data() + first, known_.sizes.data() + first, count};
  }

  std::vector<Slot> slots_;
  std::vector<char> bytes_;
  WordTokens known_, long_word_;
  std::size_t words_ = 0;
};

}  // namespace echelon::tok
