// The documents of one sequence by blocks of tokens, for attention's kernels: whether a block of
// queries sees a block of keys, so that blocks which nothing sees are skipped, and blocks of one
// document need no comparison of tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace echelon::kernels::cpu {

class Documents {
 public:
  // `numbers` of the tokens, 0 for padding; nullptr: one document without padding.
  Documents(const std::int32_t* numbers, std::int64_t tokens, std::int64_t block);

  std::int64_t end() const { return end_; }  // behind the last token that is not padding

  // The numbers to compare, up to whole blocks. Padding has different numbers as a query and as a
  // key, so that the two never match.
  const std::int32_t* queries() const { return queries_.data(); }
  const std::int32_t* keys() const { return keys_.data(); }

  enum class Sees { nothing, some, all };
  // What the block of queries that begins at token `query` sees of `blocks` blocks of keys from
  // token `key` on, if the order of tokens does not matter.
  Sees sees(std::int64_t query, std::int64_t key, std::int64_t blocks) const;

 private:
  // The numbers of a block without padding: the least, the largest, and a bit for each of them,
  // modulo 64. Two blocks share a number only if their ranges and bits overlap; with at most 64
  // documents in a row the bits are exact.
  struct Block {
    std::int32_t least = std::numeric_limits<std::int32_t>::max(), most = 0;
    std::uint64_t bits = 0;
    bool padded = false;

    void add(std::int32_t number);
    void add(const Block& other);
  };

  std::int64_t block_, end_ = 0;
  std::vector<std::int32_t> queries_, keys_;
  std::vector<Block> blocks_;
};

}  // namespace echelon::kernels::cpu
