#include "echelon/base/wrapped.h"

#include <gtest/gtest.h>

namespace echelon {
namespace {

TEST(Wrapped, LeavesWhatFitsAsItIs) {
  EXPECT_EQ(wrapped("label   ", "a  picture\n  of two lines\n", 8),
            "label   a  picture\n          of two lines\n");
  EXPECT_EQ(wrapped("label   ", "", 8), "label\n") << "no blanks at an end";
}

TEST(Wrapped, GoesOnBelowAfterEightyColumns) {
  const std::string word(20, 'x');
  EXPECT_EQ(wrapped("    ", word + " " + word + " " + word + " " + word, 2),
            "    " + word + " " + word + " " + word + "\n  " + word + "\n");
  // Of 66 columns and these; one more is too many.
  const std::string three = word + " " + word + " " + word;
  EXPECT_EQ(wrapped("    ", three + " " + std::string(13, 'y'), 0),
            "    " + three + " " + std::string(13, 'y') + "\n");
  EXPECT_EQ(wrapped("    ", three + " " + std::string(14, 'y'), 0),
            "    " + three + "\n" + std::string(14, 'y') + "\n");
}

TEST(Wrapped, CountsColumnsAndNotBytesAndCutsNoWord) {
  std::string bars;
  for (int i = 0; i < 75; ++i) bars += "│";
  EXPECT_EQ(wrapped("", bars + " word", 4), bars + " word\n");
  const std::string word(150, 'x');
  EXPECT_EQ(wrapped("a ", word + " b", 1), "a " + word + "\n b\n");
}

}  // namespace
}  // namespace echelon
