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
  for (std::size_t length = 0; length <= 70; ++length) {
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

}  // namespace
}  // namespace echelon
