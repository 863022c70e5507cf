#include "echelon/kernels/cpu/documents.h"

#include <algorithm>

namespace echelon::kernels::cpu {
namespace {

constexpr std::int32_t padding_query = -1, padding_key = 0;

}  // namespace

void Documents::Block::add(std::int32_t number) {
  if (number == padding_key) {
    padded = true;
    return;
  }
  least = std::min(least, number);
  most = std::max(most, number);
  bits |= std::uint64_t{1} << (number % 64);
}

void Documents::Block::add(const Block& other) {
  least = std::min(least, other.least);
  most = std::max(most, other.most);
  bits |= other.bits;
  padded |= other.padded;
}

Documents::Documents(const std::int32_t* numbers, std::int64_t tokens, std::int64_t block)
    : block_(block) {
  const auto number = [&](std::int64_t token) { return numbers ? numbers[token] : 1; };
  end_ = tokens;
  while (end_ > 0 && number(end_ - 1) == padding_key) --end_;
  const auto blocks = std::size_t((end_ + block - 1) / block);
  blocks_.resize(blocks);
  queries_.assign(blocks * std::size_t(block), padding_query);
  keys_.assign(blocks * std::size_t(block), padding_key);
  for (std::int64_t token = 0; token < end_; ++token) {
    if (number(token) != padding_key)
      queries_[std::size_t(token)] = keys_[std::size_t(token)] = number(token);
  }
  for (std::size_t token = 0; token < keys_.size(); ++token)
    blocks_[token / std::size_t(block)].add(keys_[token]);
}

Documents::Sees Documents::sees(std::int64_t query, std::int64_t key, std::int64_t blocks) const {
  const Block& queries = blocks_[std::size_t(query / block_)];
  const auto first = std::size_t(key / block_),
             last = std::min(blocks_.size(), first + std::size_t(blocks));
  Block keys = blocks_[first];
  for (std::size_t i = first + 1; i < last; ++i) keys.add(blocks_[i]);
  if ((queries.bits & keys.bits) == 0 || queries.least > keys.most || keys.least > queries.most)
    return Sees::nothing;
  const bool one = queries.least == queries.most && keys.least == keys.most;
  return one && !queries.padded && !keys.padded ? Sees::all : Sees::some;
}

}  // namespace echelon::kernels::cpu
