#include "echelon/base/shell_text.h"

#include <gtest/gtest.h>

#include <string>

#include "echelon/base/one_line.h"

namespace echelon {
namespace {

TEST(ShellWord, QuotesOnlyWhereAShellNeedsIt) {
  EXPECT_EQ(shell_word("train.freeze=a.b,c:d/e-f+g@h%"), "train.freeze=a.b,c:d/e-f+g@h%");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("two words"), "'two words'");
  EXPECT_EQ(shell_word("freeze=[\"a.*\"]"), "'freeze=[\"a.*\"]'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
}

TEST(OneLine, ShowsControlCharactersAsEscapes) {
  EXPECT_EQ(one_line("plain \xc3\xa4"), "plain \xc3\xa4");
  EXPECT_EQ(one_line("a\nb\tc\x1b[31m\x7f"), "a\\nb\\tc\\x1b[31m\\x7f");
  EXPECT_EQ(one_line("\xc2\x9b"
                     "31m \xc2\xa0"),
            "\\x9b31m \xc2\xa0");
}

}  // namespace
}  // namespace echelon
