#include "echelon/base/checksum.h"

#include <cstring>

namespace echelon {
namespace {

// splitmix64's finaliser: every bit of a word affects every bit of the sum.
std::uint64_t stirred(std::uint64_t hash, std::uint64_t word) {
  std::uint64_t x = (hash ^ word) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

// Four independent sums, so that multiplications do not wait for each other.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sums[4] = {1, 2, 3, 4};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 32; at += 32, left -= 32) {
    std::uint64_t words[4];
    std::memcpy(words, at, sizeof words);
    for (int i = 0; i < 4; ++i) sums[i] = stirred(sums[i], words[i]);
  }
  for (; left > 0;) {
    std::uint64_t word = 0;
    const std::size_t now = left < 8 ? left : 8;
    std::memcpy(&word, at, now);
    sums[0] = stirred(sums[0], word);
    at += now;
    left -= now;
  }
  std::uint64_t hash = bytes.size();
  for (const auto sum : sums) hash = stirred(hash, sum);
  return hash;
}

}  // namespace echelon
