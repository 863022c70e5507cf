#include "echelon/data/tokenizer/word_counts.h"

#include <functional>
#include <limits>

#include "echelon/base/error.h"

namespace echelon {

void WordCounts::add(std::string_view word, std::int64_t times) {
  if (2 * (words_.size() + 1) > slots_.size()) grow();
  const std::uint64_t hash = std::hash<std::string_view>()(word);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    if (slots_[slot] == 0) {
      words_.push_back({hash, text_.size(), word.size(), times});
      text_.append(word);
      slots_[slot] = static_cast<std::uint32_t>(words_.size());
      return;
    }
    Word& found = words_[slots_[slot] - 1];
    if (found.hash == hash && text_of(found) == word) {
      found.count += times;
      return;
    }
  }
}

void WordCounts::add(const WordCounts& other) {
  for (std::size_t i = 0; i < other.size(); ++i) add(other.word(i), other.count(i));
}

void WordCounts::grow() {
  if (words_.size() >= std::numeric_limits<std::uint32_t>::max() / 2)
    throw Error("the text has more than two billion different words; train on a part of it");
  slots_.assign(slots_.empty() ? 1024 : 2 * slots_.size(), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    std::size_t slot = words_[i].hash & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace echelon
