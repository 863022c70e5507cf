#include "echelon/base/random.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Random123, tests/kat_vectors: philox4x32 10.
TEST(Philox, MatchesThePublishedAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(FillWords, GivesTheWordsOfTheBlocksForAnyPart) {
  constexpr Key key = 0x299f31d0a4093822;
  constexpr std::uint64_t stream = 0x0370734413198a2e;
  for (const std::uint64_t first :
       {0ULL, 1ULL, 3ULL, 1022ULL, (1ULL << 34) - 5, (1ULL << 40) + 2}) {
    for (const std::size_t size : {0, 1, 4, 255, 256, 257, 1000}) {
      std::vector<std::uint32_t> words(size);
      fill_words(key, stream, first, words);
      for (std::size_t i = 0; i < size; ++i)
        ASSERT_EQ(words[i], philox(key, (first + i) / 4, stream)[(first + i) % 4])
            << "word " << i << " of " << size << " from " << first;
    }
  }
}

TEST(DeriveKey, DependsOnSeedAndPurpose) {
  std::set<Key> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const auto* purpose : {"", "a", "b", "ab", "ba", "layers.0.weight", "layers.1.weight"}) {
      keys.insert(derive_key(seed, purpose));
      EXPECT_EQ(derive_key(seed, purpose), derive_key(seed, purpose));
    }
  }
  EXPECT_EQ(keys.size(), 350U);
}

TEST(DeriveKey, TakesZeroBytesAsText) {
  EXPECT_NE(derive_key(1, std::string_view("a\0b", 3)), derive_key(1, std::string_view("a\0c", 3)));
}

// Weights and sample orders of earlier runs depend on these: a change makes them another run. The
// values were made by a second implementation, in Python.
TEST(Random, GivesTheSameBitsAsEver) {
  EXPECT_EQ(derive_key(0, ""), 0x813aefe5185aecef);
  EXPECT_EQ(derive_key(42, "wte.weight"), 0x0c674702feb2dc8b);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(uniform_at(42, 7)), 0x3fec93453ebaa370);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(normal_at(42, 6)), 0x3fc7c6216ff83c6e);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(normal_at(42, 7)), 0xbfb749c129e6a9bf);
  EXPECT_EQ(permute(42, 7, 1000), 526U);
}

TEST(Uniform, FillsTheUnitIntervalEvenly) {
  constexpr int count = 1'000'000, bins = 100;
  std::vector<int> bin(bins);
  double sum = 0, product = 0, last = uniform_at(1, count);
  for (int i = 0; i < count; ++i) {
    const double u = uniform_at(1, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bin[static_cast<std::size_t>(u * bins)];
    sum += u;
    product += (u - 0.5) * (last - 0.5);
    last = u;
  }
  EXPECT_NEAR(sum / count, 0.5, 4 * std::sqrt(1. / 12 / count));
  EXPECT_NEAR(product / count, 0, 4. / 12 / std::sqrt(count));  // neighbours are independent
  double chi_square = 0;
  for (const int n : bin)
    chi_square += (n - count / bins) * (n - count / bins) / double{count / bins};
  EXPECT_LT(chi_square, 150);  // 99 degrees of freedom: 99 +- 14
  EXPECT_GT(chi_square, 60);
}

TEST(Normal, HasTheMomentsAndTailsOfANormal) {
  constexpr int count = 1'000'000;
  double sum = 0, squares = 0, cubes = 0, fourths = 0, product = 0, last = normal_at(2, count);
  int beyond_two = 0, beyond_four = 0;
  for (int i = 0; i < count; ++i) {
    const double x = normal_at(2, static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    product += x * last;
    beyond_two += std::abs(x) > 2;
    beyond_four += std::abs(x) > 4;
    last = x;
  }
  const double root = std::sqrt(count);
  EXPECT_NEAR(sum / count, 0, 4 / root);
  EXPECT_NEAR(squares / count, 1, 4 * std::sqrt(2) / root);
  EXPECT_NEAR(cubes / count, 0, 4 * std::sqrt(15) / root);
  EXPECT_NEAR(fourths / count, 3, 4 * std::sqrt(96) / root);
  EXPECT_NEAR(product / count, 0, 4 / root);
  EXPECT_NEAR(beyond_two, 45500, 4 * 208);
  EXPECT_NEAR(beyond_four, 63, 4 * 8);
}

// The same formula from the same words with the math library's functions, which round each to the
// last bit.
TEST(Normal, IsBoxMullerToTheLastBits) {
  constexpr std::uint64_t stream = 0x6e6f726d616c0000;
  for (std::uint64_t k = 0; k < 100'000; ++k) {
    const auto word = philox(3, k, stream);
    const auto join = [](std::uint32_t low, std::uint32_t high) {
      return std::uint64_t{high} << 32 | low;
    };
    const long double u = static_cast<long double>((join(word[0], word[1]) >> 11) + 1) / 0x1p53L;
    const auto quarter = static_cast<long double>(join(word[2], word[3]) >> 62);
    // Turns are counted from the middle of a quarter: its lower half lies before it.
    const auto rest =
        static_cast<long double>(static_cast<std::int64_t>(join(word[2], word[3]) << 2) >> 11);
    const long double angle = std::numbers::pi_v<long double> / 2 * (quarter + rest / 0x1p53L);
    const long double r = std::sqrt(-2 * std::log(u));
    const double bound =
        4 * std::numeric_limits<double>::epsilon() * std::max(1.0, static_cast<double>(r));
    ASSERT_NEAR(normal_at(3, 2 * k), static_cast<double>(r * std::cos(angle)), bound) << k;
    ASSERT_NEAR(normal_at(3, 2 * k + 1), static_cast<double>(r * std::sin(angle)), bound) << k;
  }
}

TEST(Normal, IsFiniteAtTheEndsOfTheSequence) {
  constexpr auto last = std::numeric_limits<std::uint64_t>::max();
  for (const Key key : {Key{0}, Key{1}, ~Key{0}}) {
    for (const auto index : {std::uint64_t{0}, last - 1, last}) {
      EXPECT_TRUE(std::isfinite(normal_at(key, index)));
      EXPECT_LT(uniform_at(key, index), 1);
    }
  }
}

template <class T>
void expect_same_in_every_part() {
  constexpr double mean = 0.25, stddev = 0.02;
  for (const std::uint64_t first : {0, 1, 2, 3, 1000, 1001}) {
    for (std::size_t size = 0; size < 9; ++size) {
      std::vector<T> part(size + 1, T{99});
      fill_normal(5, first, std::span(part).first(size), mean, stddev);
      for (std::size_t i = 0; i < size; ++i) {
        // Rounded before the addition: this file, unlike random.cpp, may be compiled with fused
        // ones.
        const volatile double scaled = stddev * normal_at(5, first + i);
        EXPECT_EQ(part[i], static_cast<T>(mean + scaled));
      }
      EXPECT_EQ(part[size], T{99});
    }
  }
}

TEST(FillNormal, GivesEachElementWhateverThePart) {
  expect_same_in_every_part<float>();
  expect_same_in_every_part<double>();
}

std::vector<std::uint64_t> order(Key key, std::uint64_t n) {
  std::vector<std::uint64_t> order;
  for (std::uint64_t i = 0; i < n; ++i) order.push_back(permute(key, i, n));
  return order;
}

TEST(Permute, VisitsEveryIndexOnce) {
  std::vector<std::uint64_t> sizes = {997, 1009, 4095, 4096, 4097, 10007, 65536, 65537};
  for (std::uint64_t n = 1; n <= 130; ++n) sizes.push_back(n);
  for (const auto n : sizes) {
    for (const Key key : {Key{0}, Key{12345}}) {
      std::vector<int> visits(n);
      for (const auto index : order(key, n)) {
        ASSERT_LT(index, n);
        ++visits[index];
      }
      for (const int count : visits) ASSERT_EQ(count, 1) << "n = " << n;
    }
  }
}

TEST(Permute, GivesEveryKeyItsOwnOrder) {
  std::set<std::vector<std::uint64_t>> orders;
  for (Key key = 0; key < 200; ++key) orders.insert(order(key, 100));
  EXPECT_EQ(orders.size(), 200U);
}

TEST(Permute, GivesEveryOrderOfAFewIndicesAboutEquallyOften) {
  for (const auto& [n, orders] : {std::pair{2, 2}, {3, 6}, {4, 24}, {5, 120}}) {
    std::map<std::vector<std::uint64_t>, int> times;
    for (int key = 0; key < 200 * orders; ++key) {
      ++times[order(static_cast<Key>(key), static_cast<std::uint64_t>(n))];
    }
    EXPECT_EQ(times.size(), static_cast<std::size_t>(orders)) << "n = " << n;
    for (const auto& [unused, count] : times) EXPECT_NEAR(count, 200, 75) << "n = " << n;
  }
}

TEST(Permute, LeavesNoTraceOfTheOldOrder) {
  constexpr std::uint64_t n = 20'000;
  const auto indices = order(9, n);
  double product = 0;
  int kept_neighbours = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    product += (static_cast<double>(i) / n - 0.5) * (static_cast<double>(indices[i]) / n - 0.5);
    kept_neighbours += i > 0 && indices[i] == indices[i - 1] + 1;
  }
  EXPECT_NEAR(product / n * 12, 0, 4 / std::sqrt(n));
  EXPECT_LE(kept_neighbours, 6);  // 1 on average
}

TEST(Permute, WorksForTheLargestRanges) {
  for (const std::uint64_t n : {1ULL << 32, (1ULL << 32) + 1, 1ULL << 63, ~0ULL}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const auto index = permute(7, n - 1 - i, n);
      EXPECT_LT(index, n);
      seen.insert(index);
    }
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_GT(*seen.rbegin(), n / 2);
  }
}

TEST(Permute, RefusesAPositionOutsideTheRange) {
  EXPECT_EQ(thrown<InvalidArgument>([] { permute(1, 5, 5); }),
            "permute needs a position below n, but position 5 of 5 was given");
  EXPECT_EQ(thrown<InvalidArgument>([] { permute(1, 0, 0); }),
            "permute needs a position below n, but position 0 of 0 was given");
}

}  // namespace
}  // namespace echelon
