#include "echelon/base/bytes.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace echelon {
namespace {

TEST(HumanBytes, NamesTheBinaryUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(3200), "3.1 KiB");
  EXPECT_EQ(human_bytes(1 << 20), "1.0 MiB");
  EXPECT_EQ(human_bytes(29420000000), "27.4 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(HumanBytes, NeverPrints1024OfAUnit) {
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes((1 << 20) - 100), "1023.9 KiB");
  EXPECT_EQ(human_bytes((std::uint64_t{1} << 30) - 1), "1.0 GiB");
}

TEST(HumanRate, HasAUnitThatFits) {
  EXPECT_EQ(human_rate(12.5e6), "12.5 MB/s");  // 100 Mbit/s
  EXPECT_EQ(human_rate(1.25e9), "1.25 GB/s");
  EXPECT_EQ(human_rate(9.814e9), "9.81 GB/s");
  EXPECT_EQ(human_rate(999.6e6), "1.00 GB/s");
  EXPECT_EQ(human_rate(7000), "7.00 kB/s");
  EXPECT_EQ(human_rate(0), "0.00 B/s");
}

TEST(HumanSeconds, HasAUnitThatFits) {
  EXPECT_EQ(human_seconds(430e-9), "430 ns");
  EXPECT_EQ(human_seconds(1.12e-3), "1.12 ms");
  EXPECT_EQ(human_seconds(0.2234), "223 ms");
  EXPECT_EQ(human_seconds(4.5), "4.50 s");
  EXPECT_EQ(human_seconds(4500), "4500 s");
}

TEST(HumanAge, CountsWholeUnits) {
  EXPECT_EQ(human_age(0.4), "less than a second");
  EXPECT_EQ(human_age(1), "1 second");
  EXPECT_EQ(human_age(59.9), "59 seconds");
  EXPECT_EQ(human_age(750), "12 minutes");
  EXPECT_EQ(human_age(3 * 3600 + 1800), "3 hours");
  EXPECT_EQ(human_age(50 * 3600), "2 days");
}

TEST(HumanCount, HasThreeDigits) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(7), "7");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(12.34), "12.3");
  EXPECT_EQ(human_count(1000), "1.00k");
  EXPECT_EQ(human_count(12345), "12.3k");
  EXPECT_EQ(human_count(1.05e6), "1.05M");
  EXPECT_EQ(human_count(124439808), "124M");
  EXPECT_EQ(human_count(7.5e9), "7.50B");
  EXPECT_EQ(human_count(1.5e12), "1.50T");
  EXPECT_EQ(human_count(-12345), "-12.3k");
}

TEST(HumanCount, GoesToTheNextUnitWhereRoundingDoes) {
  EXPECT_EQ(human_count(999.4), "999");
  EXPECT_EQ(human_count(999.6), "1.00k");
  EXPECT_EQ(human_count(9.996e3), "10.0k");
  EXPECT_EQ(human_count(99.96e3), "100k");
  EXPECT_EQ(human_count(999.6e3), "1.00M");
}

TEST(HumanCount, PrintsWhatIsNoNumber) {
  EXPECT_EQ(human_count(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(human_count(std::nan("")), "nan");
}

}  // namespace
}  // namespace echelon
