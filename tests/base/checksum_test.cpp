#include "echelon/base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace echelon {
namespace {

TEST(Checksum, ChangesWithEveryBitAndEveryLength) {
  std::set<std::uint64_t> seen;
  std::size_t cases = 0;
  for (std::size_t length = 0; length <= 140; ++length) {
    std::vector<std::byte> bytes(length);
    seen.insert(checksum(bytes));
    ++cases;
    for (std::size_t bit = 0; bit < 8 * length; ++bit) {
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
      seen.insert(checksum(bytes));
      ++cases;
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
    }
  }
  EXPECT_EQ(seen.size(), cases);
}

TEST(Checksum, ChangesWithTheOrder) {
  std::vector<std::byte> bytes(64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
  const auto before = checksum(bytes);
  EXPECT_EQ(checksum(bytes), before);
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 32);
  EXPECT_NE(checksum(bytes), before);
}

// Blocks of a long text, exchanged or turned: whatever sums them up must know where each was.
TEST(Checksum, ChangesWithTheOrderOfBlocks) {
  std::vector<std::byte> bytes(4096);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * i >> 5);
  std::set<std::uint64_t> seen = {checksum(bytes)};
  std::size_t cases = 1;
  for (const std::size_t size : {8, 16, 64, 512})
    for (std::size_t at = size; at + size <= bytes.size(); at += size, ++cases) {
      auto other = bytes;
      std::swap_ranges(other.begin(), other.begin() + std::ptrdiff_t(size),
                       other.begin() + std::ptrdiff_t(at));
      seen.insert(checksum(other));
    }
  EXPECT_EQ(seen.size(), cases);
}

}  // namespace
}  // namespace echelon
