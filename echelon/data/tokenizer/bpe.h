// Byte-pair encoding (Sennrich et al. 2016, Radford et al. 2019). A word begins as its bytes or
// characters. Of all neighbours that have a merge, those of the lowest rank are joined, the
// leftmost first, until no pair has one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/data/tokenizer/vocabulary.h"
#include "echelon/data/tokenizer/word_model.h"

namespace echelon::tok {

// (left, right) to (rank, merged): a flat table.
class MergeTable {
 public:
  struct Merge {
    std::int32_t left = -1, right = -1;
    std::uint32_t rank = 0;
    std::int32_t id = -1;
  };
  explicit MergeTable(std::size_t most);
  // A pair that is already there gets the new rank.
  void insert(const Merge& merge);
  const Merge* find(std::int32_t left, std::int32_t right) const {
    for (std::size_t at = place(left, right);; at = (at + 1) & mask_) {
      const Merge& merge = slots_[at];
      if (merge.left == left && merge.right == right) return &merge;
      if (merge.left < 0) return nullptr;
    }
  }

 private:
  std::size_t place(std::int32_t left, std::int32_t right) const {
    const auto key = std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
    return (key * 0x9E3779B97F4A7C15 >> 32) & mask_;
  }
  std::size_t mask_;
  std::vector<Merge> slots_;
};

struct BpeSettings {
  bool byte_level = false;  // words are bytes; tokens are written in GPT-2's alphabet
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
  std::string prefix, suffix;  // of characters that do not begin, or that end a word
  std::optional<std::string> unknown;
};

class Bpe : public WordModel {
 public:
  // `vocabulary` must outlive this. Merges as pairs of tokens, by rank. Throws Corrupt with
  // `where`.
  Bpe(const Vocabulary& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
      const BpeSettings& settings, const std::string& where);
  void encode(std::string_view word, WordTokens& out, WordScratch& scratch) const override;
  bool splits_at_spaces() const override { return splits_at_spaces_; }

 private:
  void split(std::string_view word, WordScratch& scratch) const;
  void split_bytes(std::string_view word, WordScratch& scratch) const;
  void add_unknown(WordScratch& scratch, std::size_t size, bool& last_is_unknown) const;
  void merge_few(WordScratch& scratch) const;
  void merge_many(WordScratch& scratch) const;

  const Vocabulary& vocabulary_;
  BpeSettings settings_;
  MergeTable merges_;
  IdTable whole_;  // of bytes, if byte-level and merges are ignored for whole words
  // Ids of bytes, by place: in the middle, at the end, at the beginning, alone.
  std::array<std::array<std::int32_t, 256>, 4> byte_ids_;
  std::array<std::int32_t, 256> fallback_ids_;  // of <0x00> …
  std::int32_t unknown_ = -1;
  bool splits_at_spaces_ = false;
};

}  // namespace echelon::tok
