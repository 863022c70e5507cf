// The bar of a run, in terminals of every width.
#include "echelon/job/progress.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace echelon {
namespace {

const std::vector<std::string> numbers = {"loss 1.234", "1.780 bits/byte", "12.3k tokens/s",
                                          "0:12 left"};

int columns_of(const std::string& line) {
  int columns = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
      continue;
    }
    columns += (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
  }
  return columns;
}

int count(const std::string& line, const std::string& cell) {
  int found = 0;
  for (auto at = line.find(cell); at != line.npos; at = line.find(cell, at + cell.size())) ++found;
  return found;
}

TEST(Bar, StaysBelowTheWidthOfEveryTerminal) {
  for (const bool colours : {true, false})
    for (int columns = 1; columns < 200; ++columns)
      EXPECT_LT(columns_of(bar_line("step  100/3200", numbers, 0.5, columns, colours)), columns)
          << columns;
}

TEST(Bar, IsThereOnATerminalOfEightyColumns) {
  const std::string line = bar_line("step  800/3200", numbers, 0.25, 80, false);
  EXPECT_GE(count(line, "━"), 3) << line;
  EXPECT_NE(line.find("loss 1.234  12.3k tokens/s  0:12 left"), line.npos) << line;
}

TEST(Bar, ShowsHowMuchIsDoneWithoutColours) {
  const std::string line = bar_line("step  800/3200", numbers, 0.25, 200, false);
  EXPECT_EQ(line.find('\x1b'), line.npos);
  EXPECT_EQ(count(line, "━"), 10) << line;
  EXPECT_EQ(count(line, "·"), 30) << line;
  EXPECT_EQ(count(bar_line("step 3200/3200", numbers, 1, 200, false), "━"), 40);
  EXPECT_EQ(count(bar_line("step    1/3200", numbers, 1.0 / 3200, 200, false), "━"), 0);
}

TEST(Bar, LeavesNumbersOutBeforeItLeavesItselfOut) {
  EXPECT_NE(bar_line("step 1/2", numbers, 0.5, 120, false).find("bits/byte"), std::string::npos);
  EXPECT_EQ(bar_line("step 1/2", numbers, 0.5, 44, false),
            "step 1/2  ━━━━━·····  loss 1.234  0:12 left");
  EXPECT_EQ(bar_line("step 1/2", numbers, 0.5, 36, false), "step 1/2  loss 1.234  0:12 left");
}

}  // namespace
}  // namespace echelon
