#include "echelon/data/tokenizer/pattern.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "tests/base/thrown.h"

namespace echelon::tok {
namespace {

std::vector<std::string> split(const Pattern& pattern, const std::string& text) {
  std::vector<ByteRange> found;
  pattern.matches(text, found);
  std::vector<std::string> words;
  for (const auto& range : found)
    words.push_back(text.substr(range.begin, range.end - range.begin));
  return words;
}

using Words = std::vector<std::string>;

TEST(KnownPatterns, SplitAsGpt2Does) {
  const auto pattern = known_pattern(gpt2_expression);
  ASSERT_TRUE(pattern);
  EXPECT_EQ(split(*pattern, "don't  stop, 123!\n"),
            (Words{"don", "'t", " ", " stop", ",", " 123", "!", "\n"}));
  EXPECT_EQ(split(*pattern, "a\n\nb   "), (Words{"a", "\n", "\n", "b", "   "}));
  EXPECT_FALSE(known_pattern("\\w+"));
}

// The patterns by hand and by the engine are two implementations of the same.
TEST(KnownPatterns, AgreeWithTheEngine) {
  const std::string llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  std::mt19937 random(7);
  const std::vector<std::string> pieces = {"a",
                                           "B",
                                           "'",
                                           "s",
                                           "LL",
                                           "re",
                                           "\xC5\xBF",
                                           " ",
                                           "  ",
                                           "\n",
                                           "\r",
                                           "\t",
                                           "1",
                                           "23",
                                           "!",
                                           "...",
                                           "-",
                                           "\xC3\xA9",
                                           "\xE3\x80\x80",
                                           "\xE4\xB8\xAD",
                                           "\xC2\xBD",
                                           "\xF0\x9F\x98\x80",
                                           "\xCC\x81"};
  for (const std::string& expression : {std::string(gpt2_expression), llama3}) {
    std::unique_ptr<Pattern> engine;
    try {
      engine = pcre2_pattern(expression, "test");
    } catch (const InvalidArgument& error) {
      if (std::string(error.what()).find("built without") != std::string::npos)
        GTEST_SKIP() << error.what();
      throw;
    }
    const auto by_hand = known_pattern(expression);
    ASSERT_TRUE(by_hand);
    for (int i = 0; i < 5000; ++i) {
      std::string text;
      for (std::size_t n = random() % 12; n > 0; --n) text += pieces[random() % pieces.size()];
      ASSERT_EQ(split(*by_hand, text), split(*engine, text)) << text;
    }
  }
}

TEST(LiteralPatterns, FindEveryOccurrence) {
  EXPECT_EQ(split(*literal_pattern("aa"), "aaaaa"), (Words{"aa", "aa"}));
}

TEST(RegularExpressions, WhatTheEnginesReadDifferentlyIsRefused) {
  for (const char* expression : {"[a&&b]", "(?m:.)", "[[a]b]", "\\G", "\\K", "[\\W]", "(", "\\pL+",
                                 "\\PL", "(*ACCEPT)", "a{3,2}", "\\"}) {
    try {
      const auto pattern = regular_expression(expression, "file.json: place");
      ADD_FAILURE() << expression << " is accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("file.json: place"), std::string::npos)
          << error.what();
    }
  }
}

// What tokenizers finds: tests/python/tokenizer_test.py has whole tokenisers with such patterns.
TEST(RegularExpressions, IntervalsMeanWhatOnigurumaTakesThemFor) {
  const struct {
    std::string expression, text;
    Words words;
  } cases[] = {{"\\d{1,3}+", "12345", {"12345"}},   // not possessive, but repeated
               {"\\d{1,3}+5", "12345", {"12345"}},  // with backtracking
               {"\\d{2}+", "12345", {"1234"}},
               {"(?:\\d{2}?)x", "x1x12x", {"x", "x", "12x"}},  // nothing or two
               {"\\d{1,3}?x", "12x", {"12x"}},
               {"\\d{1,2}?", "123", {"1", "2", "3"}},
               {"xa{,2}", "xaaa", {"xaa"}},
               {"a{2", "aa{2", {"a{2"}},
               {"a{,}", "aa{,}", {"a{,}"}},
               {"a{ 1}", "aa{ 1}", {"a{ 1}"}},
               {"é{1,2}+", "ééé", {"ééé"}},
               {"x(?:a(b)){1,2}+", "xabababab", {"xabababab"}},
               {"(?i)[ab]{2}+", "aBAb", {"aBAb"}},
               {"\\x{e9}{1,2}+|\\x41{2}?", "éééAA", {"ééé", "AA"}},
               {"\\p{Han}+", "漢字、、", {"漢字"}},  // U+3001 is used with Han, and not of it
               {"\\p{^Han}+", "漢字ab", {"ab"}},
               {"\\P{Han}+", "漢字ab", {"ab"}}};
  for (const auto& one : cases) {
    std::unique_ptr<Pattern> pattern;
    try {
      pattern = pcre2_pattern(one.expression, "test");
    } catch (const InvalidArgument& error) {
      if (std::string(error.what()).find("built without") != std::string::npos)
        GTEST_SKIP() << error.what();
      throw;
    }
    EXPECT_EQ(split(*pattern, one.text), one.words) << one.expression;
  }
}

TEST(RegularExpressions, ThatTakeTooLongEnd) {
  std::unique_ptr<Pattern> pattern;
  try {
    pattern = regular_expression("(a+)+$", "test");
  } catch (const InvalidArgument& error) {
    GTEST_SKIP() << error.what();
  }
  std::vector<ByteRange> found;
  EXPECT_THROW(pattern->matches(std::string(5000, 'a') + "b", found), InvalidArgument);
}

std::unique_ptr<Pattern> engine_or_null(const char* expression) {
  try {
    return regular_expression(expression, "test");
  } catch (const InvalidArgument&) {  // built without PCRE2
    return nullptr;
  }
}

// No single match takes long here, but all together would take minutes.
TEST(RegularExpressions, ThatTakeTooLongAtManyPlacesEnd) {
  const auto pattern = engine_or_null("(?:a|aa)+$");
  if (!pattern) GTEST_SKIP() << "built without PCRE2";
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += std::string(25, 'a') + "b";
  std::vector<ByteRange> found;
  EXPECT_EQ(thrown<InvalidArgument>([&] { pattern->matches(text, found); }),
            "test: the pattern cannot be matched in a text of 260000 bytes: it takes more than "
            "10000 steps at more than 64 places");
}

TEST(RegularExpressions, FewPlacesMayTakeManySteps) {
  const auto pattern = engine_or_null("(?:a|aa)+$|b");
  if (!pattern) GTEST_SKIP() << "built without PCRE2";
  const std::string run(25, 'a');
  EXPECT_EQ(split(*pattern, "aab" + run + "bb" + run + "\nb" + run),
            (Words{"b", "b", "b", run, "b", run}));
}

TEST(RegularExpressions, LongWordsAreMatchedHoweverManyThereAre) {
  const auto pattern = engine_or_null("(?:a|é)+| ");
  if (!pattern) GTEST_SKIP() << "built without PCRE2";
  std::string text;
  Words words;
  for (int i = 0; i < 100; ++i) {
    words.push_back(std::string(std::size_t(20'000 + i), 'a') + "é");
    words.push_back(" ");
    text += words[words.size() - 2] + " ";
  }
  EXPECT_EQ(split(*pattern, text), words);
}

}  // namespace
}  // namespace echelon::tok
