// The suite that compares merges with those of another implementation is bpe_trainer_test.py.
#include "echelon/data/tokenizer/bpe_trainer.h"

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Merged = std::vector<std::string>;

WordCounts counts(const std::vector<std::pair<std::string, std::int64_t>>& words) {
  WordCounts all;
  for (const auto& [word, count] : words) all.add(word, count);
  return all;
}

// What the merges spell, in their order.
Merged merged(const WordCounts& words, BpeTrainerOptions options) {
  const auto bpe = train_bpe(words, options);
  Merged texts;
  for (const auto& [first, second] : bpe.merges)
    texts.push_back(bpe.tokens[first] + "+" + bpe.tokens[second]);
  return texts;
}

TEST(WordCounts, CountEachWord) {
  WordCounts words;
  for (int i = 0; i < 5000; ++i) words.add(std::to_string(i % 1700));
  WordCounts more;
  more.add("7", 10);
  more.add("new", 2);
  words.add(more);
  ASSERT_EQ(words.size(), 1701u);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word(words.word(i));
    if (word == "new")
      EXPECT_EQ(words.count(i), 2);
    else
      EXPECT_EQ(words.count(i), (std::stoi(word) < 1600 ? 3 : 2) + (word == "7" ? 10 : 0)) << word;
  }
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  // The example of Sennrich et al., section 3.2, without its end of a word.
  const auto words = counts({{"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}});
  EXPECT_EQ(merged(words, {.vocab = 256 + 7, .special = {}}),
            (Merged{"e+s", "es+t", "l+o", "lo+w", "e+w", "n+ew", "new+est"}));
}

TEST(BpeTrainer, TakesTheSmallerIdsOfEquallyFrequentPairs) {
  EXPECT_EQ(merged(counts({{"zy", 2}, {"ab", 2}, {"ac", 2}}), {.vocab = 300, .special = {}}),
            (Merged{"a+b", "a+c", "z+y"}));
}

TEST(BpeTrainer, StopsAtTheVocabularyOrTheFrequency) {
  const auto words = counts({{"ab", 5}, {"cd", 2}, {"ef", 1}});
  EXPECT_EQ(train_bpe(words, {.vocab = 258}).tokens.size(), 258u);
  EXPECT_EQ(merged(words, {.vocab = 1000, .min_frequency = 2}), (Merged{"a+b", "c+d"}));
  EXPECT_EQ(merged(words, {.vocab = 1000, .min_frequency = 1}), (Merged{"a+b", "c+d", "e+f"}));
  EXPECT_EQ(train_bpe(words, {.vocab = 1000}).text_tokens, 5 + 2 + 1);
}

TEST(BpeTrainer, MergesARunOfOneLetterFromTheLeft) {
  const auto bpe = train_bpe(counts({{"aaaaa", 1}}), {.vocab = 257, .special = {}});
  EXPECT_EQ(bpe.tokens.back(), "aa");
  EXPECT_EQ(bpe.text_tokens, 3);
}

TEST(BpeTrainer, SaysWhatIsWrong) {
  const auto words = counts({{"a", 1}});
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              train_bpe(words, {.vocab = 257, .special = {"x", "y"}});
            }),
            "a vocabulary of 257 tokens is too small: the bytes need 256 and the special tokens 2, "
            "so it must have at least 258");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              train_bpe(words, {.special = {"x", "x"}});
            }),
            "the special token x is given twice");
  EXPECT_EQ(thrown<InvalidArgument>([&] { train_bpe(words, {.special = {""}}); }),
            "a special token is empty; give it a text");
  EXPECT_EQ(thrown<InvalidArgument>([] { train_bpe({}, {}); }),
            "there is no text to train a tokeniser on");
}

TEST(BpeTrainer, WritesAFolderThatOpens) {
  const ScratchFolder folder;
  write_tokenizer(folder / "new",
                  train_bpe(counts({{"\"\\\n\x01", 9}, {" the", 5}}), {.vocab = 300}));
  const Tokenizer tokenizer = Tokenizer::open(folder / "new");
  EXPECT_EQ(tokenizer.size(), 256 + 1 + 6) << "three merges of each word";
  EXPECT_EQ(tokenizer.special().end, 0);
  std::vector<std::int32_t> ids;
  tokenizer.append("\xF0\x9F\x98\x80 the the", ids);
  EXPECT_EQ(ids.size(), 6u) << "four bytes and two words";
  EXPECT_EQ(tokenizer.decode(ids), "\xF0\x9F\x98\x80 the the");
}

}  // namespace
}  // namespace echelon
