// How often each word occurs: what a BPE is trained on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace echelon {

class WordCounts {
 public:
  void add(std::string_view word, std::int64_t times = 1);
  void add(const WordCounts& other);

  std::size_t size() const { return words_.size(); }  // different words
  std::string_view word(std::size_t i) const { return text_of(words_[i]); }
  std::int64_t count(std::size_t i) const { return words_[i].count; }

 private:
  struct Word {
    std::uint64_t hash;
    std::size_t begin, size;  // in text_
    std::int64_t count;
  };
  std::string_view text_of(const Word& word) const {
    return {text_.data() + word.begin, word.size};
  }
  void grow();

  std::string text_;                  // all words, one after another
  std::vector<Word> words_;           // in the order in which they first occurred
  std::vector<std::uint32_t> slots_;  // open addressing: 1 + a word's place in words_, 0 is free
};

}  // namespace echelon
