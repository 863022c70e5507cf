// How often each pair of tokens occurs, by open addressing: the inner loop of training a BPE.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace echelon {

class PairCounts {
 public:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
  struct Entry {
    std::uint64_t pair = free;
    std::int64_t count = 0;
    std::uint32_t gained = none;  // its place among the pairs that gained since the last merge
  };

  // The entry of a pair, which is made with the count 0. Valid until the next call.
  Entry& at(std::uint64_t pair) {
    if (2 * (used_ + 1) > entries_.size()) grow();
    Entry& entry = entries_[place_of(pair)];
    if (entry.pair == free) {
      entry.pair = pair;
      ++used_;
    }
    return entry;
  }

 private:
  static constexpr std::uint64_t free = std::numeric_limits<std::uint64_t>::max();

  std::size_t place_of(std::uint64_t pair) const {
    const std::size_t mask = entries_.size() - 1;
    std::size_t place = (pair * 0x9e3779b97f4a7c15u) >> 20 & mask;
    while (entries_[place].pair != pair && entries_[place].pair != free) place = (place + 1) & mask;
    return place;
  }
  void grow() {
    const auto old = std::exchange(
        entries_, std::vector<Entry>(entries_.empty() ? 1 << 12 : 2 * entries_.size()));
    for (const auto& entry : old)
      if (entry.pair != free) entries_[place_of(entry.pair)] = entry;
  }

  std::vector<Entry> entries_;
  std::size_t used_ = 0;
};

}  // namespace echelon
