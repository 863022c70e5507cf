#include "echelon/base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace echelon {
namespace {

TEST(Utf8, EndsAtTheFirstByteThatIsNot) {
  // The examples of the Unicode standard, section 3.9, and of Markus Kuhn's decoder test.
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"", 0},
      {"plain", 5},
      {"caf\xC3\xA9", 5},
      {"\xF0\x9F\x98\x80 is a face", 14},
      {"\xEF\xBF\xBD\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF", 13},  // the borders
      {"ab\xC0\xAF", 2},                                             // overlong forms of '/'
      {"ab\xC1\xBF", 2},
      {"ab\xE0\x80\xAF", 2},
      {"ab\xE0\x9F\xBF", 2},
      {"ab\xF0\x80\x80\xAF", 2},
      {"ab\xF0\x8F\xBF\xBF", 2},
      {"ab\xED\xA0\x80", 2},      // a surrogate
      {"ab\xF4\x90\x80\x80", 2},  // above U+10FFFF
      {"ab\xF5\x80\x80\x80", 2},
      {"ab\xFF", 2},
      {"ab\x80", 2},  // a continuation without a lead
      {"ab\xC3", 2},  // cut off
      {"ab\xE2\x82", 2},
      {"ab\xF0\x9F\x98", 2},
      {"ab\xE2\x28\xA1", 2},
      {"ab\xE2\x82\x28", 2},
      {"0123456701234567\xC3\xA9 01234567\x80", 27},
  };
  for (const auto& [text, valid] : cases) {
    EXPECT_EQ(utf8_prefix(text), valid) << text;
    // At any place relative to the blocks of eight bytes.
    for (std::size_t shift = 1; shift < 9; ++shift)
      EXPECT_EQ(utf8_prefix(std::string(shift, 'x') + text), shift + valid) << text;
  }
}

TEST(Utf8, AppendsEveryCodePointAsItIsRead) {
  for (std::uint32_t point = 0; point <= 0x10FFFF; ++point) {
    if (point >= 0xD800 && point <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, point);
    ASSERT_EQ(utf8_prefix(text), text.size()) << point;
    const std::size_t size = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    ASSERT_EQ(text.size(), size) << point;
  }
  std::string text;
  for (const std::uint32_t point : {0x24U, 0xA3U, 0x20ACU, 0x1F600U}) append_utf8(text, point);
  EXPECT_EQ(text, "$£€😀");
}

}  // namespace
}  // namespace echelon
