#include "echelon/lab/word_vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/random.h"
#include "echelon/data/tokenizer/normal_forms.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// 5 special tokens; 94 visible characters without 26 capitals; 36 letters and digits that continue
// a word.
constexpr std::size_t fixed = 5 + (94 - 26) + 36;

using Words = std::vector<std::string>;

Words words_of(std::span<const std::string_view> texts, std::size_t size) {
  const Words tokens = word_vocabulary(texts, size);
  EXPECT_GE(tokens.size(), fixed);
  return {tokens.begin() + fixed, tokens.end()};
}

Words words_of(std::string_view text, std::size_t size = 1000) {
  return words_of(std::array{text}, size);
}

TEST(WordVocabulary, BeginsWithSpecialTokensAndCharacters) {
  const Words tokens = word_vocabulary({}, 1000);
  ASSERT_EQ(tokens.size(), fixed);
  EXPECT_EQ(Words(tokens.begin(), tokens.begin() + 5),
            (Words{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}));
  const std::set<std::string> all(tokens.begin(), tokens.end());
  EXPECT_EQ(all.size(), tokens.size()) << "a token has one id";
  for (char c = '!'; c <= '~'; ++c) {
    const bool capital = c >= 'A' && c <= 'Z';
    EXPECT_EQ(all.contains(std::string(1, c)), !capital) << c;
    const bool continues = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    EXPECT_EQ(all.contains(std::string("##") + c), continues) << c;
  }
}

TEST(WordVocabulary, PutsFrequentWordsFirstAndTheSmallerOfEquals) {
  EXPECT_EQ(words_of("pear fig fig plum apple pear fig apple"),
            (Words{"fig", "apple", "pear", "plum"}));
}

TEST(WordVocabulary, CountsLettersInLowerCaseAndNothingElse) {
  EXPECT_EQ(words_of("The THE the-plot, the_plot 42 plot's x2\n\tcaf\xc3\xa9 the"),
            (Words{"the", "plot", "caf"}))
      << "s, x and parts of letters beyond ASCII are characters, which it has already";
}

TEST(WordVocabulary, TakesWordsOfAnEarlierTextFirst) {
  EXPECT_EQ(words_of(std::array<std::string_view, 2>{"rare", "often often rare new"}, 1000),
            (Words{"rare", "often", "new"}));
}

TEST(WordVocabulary, HasAtMostItsSize) {
  const std::string_view text = "aa aa aa bb bb cc";
  EXPECT_EQ(words_of(text, fixed + 2), (Words{"aa", "bb"}));
  EXPECT_EQ(words_of(text, fixed), Words{});
  EXPECT_EQ(words_of(std::array<std::string_view, 2>{text, "dd"}, fixed + 3),
            (Words{"aa", "bb", "cc"}));
}

TEST(WordVocabulary, RefusesASizeWithoutRoomForCharacters) {
  for (const std::size_t size : {std::size_t(0), std::size_t(5), fixed - 1})
    EXPECT_EQ(thrown<InvalidArgument>([&] { word_vocabulary({}, size); }),
              "a vocabulary of " + std::to_string(size) +
                  " tokens has no room for special tokens and characters, which are " +
                  std::to_string(fixed));
}

class WrittenVocabulary : public testing::Test {
 protected:
  void SetUp() override {
    if (!tok::has_normal_forms) GTEST_SKIP() << "built without utf8proc";
  }
  Tokenizer tokenizer(std::string_view text) {
    write_word_vocabulary(folder_ / "tokenizer", word_vocabulary(std::array{text}, 1000));
    return Tokenizer::open(folder_ / "tokenizer");
  }
  const ScratchFolder folder_;
};

Words pieces(const Tokenizer& tokenizer, std::string_view text) {
  Words all;
  for (const auto id : tokenizer.encode(text, {.special = false}).ids)
    all.emplace_back(tokenizer.token(id));
  return all;
}

TEST_F(WrittenVocabulary, IsWhatOurTokeniserReads) {
  const auto words = tokenizer("the plot bores the cast");
  const Words tokens =
      word_vocabulary(std::array<std::string_view, 1>{"the plot bores the cast"}, 1000);
  ASSERT_EQ(words.size(), std::int64_t(tokens.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    EXPECT_EQ(words.token(std::int32_t(i)), tokens[i]) << i;
  EXPECT_EQ(pieces(words, "The plot never bores!"),
            (Words{"the", "plot", "n", "##e", "##v", "##e", "##r", "bores", "!"}));
  const auto config = nlohmann::json::parse(read_file(folder_ / "tokenizer/tokenizer_config.json"));
  EXPECT_EQ(config.at("tokenizer_class"), "DistilBertTokenizer");
  EXPECT_EQ(config.at("do_lower_case"), true);
}

TEST_F(WrittenVocabulary, HasPiecesForEveryAsciiText) {
  const auto words = tokenizer("some words of a text");
  const auto unknown = words.special().unknown;
  ASSERT_TRUE(unknown);
  const Key key = derive_key(1, "texts");
  std::uint64_t drawn = 0;
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int n = 0; n < 60; ++n) text += char(' ' + int(uniform_at(key, drawn++) * 95));
    const auto ids = words.encode(text).ids;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *unknown), 0) << text;
    std::string visible, encoded;
    for (const char c : text)
      if (c != ' ') visible += c >= 'A' && c <= 'Z' ? char(c | 0x20) : c;
    for (const auto& piece : pieces(words, text))
      encoded += piece.size() > 2 && piece.starts_with("##") ? piece.substr(2) : piece;
    EXPECT_EQ(encoded, visible);
  }
}

}  // namespace
}  // namespace echelon
