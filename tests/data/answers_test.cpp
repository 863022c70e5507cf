#include "echelon/data/answers.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Ids = std::vector<std::int32_t>;
using Row = std::vector<std::int64_t>;

Row row_of(const at::Tensor& table, std::int64_t i) {
  const at::Tensor row = table[i].contiguous();
  return {row.data_ptr<std::int64_t>(), row.data_ptr<std::int64_t>() + row.numel()};
}

TEST(Answers, HaveTargetsAtTheTokensOfTheAnswerAlone) {
  TokenTexts texts;
  texts.add(Ids{1, 11, 12, 21, 22, 2}, 3);  // begin, prompt, answer, end
  texts.add(Ids{1, 13, 2}, 2);
  const Answers data(std::move(texts), 8, /*padding=*/9);
  EXPECT_EQ(data.length(0), 5);
  EXPECT_EQ(data.targets(0), 3);
  EXPECT_EQ(data.targets(1), 1);
  const Batch batch = data.get(std::vector<std::int64_t>{1, 0});
  EXPECT_EQ(row_of(batch.input, 0), (Row{1, 13, 9, 9, 9}));
  EXPECT_EQ(row_of(batch.target, 0), (Row{-100, 2, -100, -100, -100}));
  EXPECT_EQ(row_of(batch.input, 1), (Row{1, 11, 12, 21, 22}));
  EXPECT_EQ(row_of(batch.target, 1), (Row{-100, -100, 21, 22, 2}));
}

// The tokens of a prompt 1, 2, 3, 4, of which the first `kept` stay, and an answer 5, 6, 7.
Ids cut(std::int64_t kept, std::int64_t most, std::int64_t second) {
  TokenTexts texts;
  EXPECT_TRUE(add_answer(texts, Ids{1, 2, 3, 4}, Ids{5, 6, 7}, kept, most));
  EXPECT_EQ(texts.second(0), second);
  const auto ids = texts.ids(0);
  return {ids.begin(), ids.end()};
}

TEST(Answers, AreCutByLeavingOutTheBeginningOfThePromptFirst) {
  EXPECT_EQ(cut(0, 6, 3), (Ids{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(cut(0, 4, 1), (Ids{4, 5, 6, 7}));
  EXPECT_EQ(cut(0, 3, 1), (Ids{4, 5, 6})) << "at least one token to go on from";
  EXPECT_EQ(cut(1, 5, 2), (Ids{1, 4, 5, 6, 7})) << "the token that begins a text stays";
  EXPECT_EQ(cut(1, 3, 1), (Ids{1, 5, 6}));
}

TEST(Answers, ThatFitAreNotCut) {
  TokenTexts texts;
  EXPECT_FALSE(add_answer(texts, Ids{1, 2}, Ids{5, 6}, 1, 4));
  EXPECT_EQ(texts.ids(0).size(), 4U);
  EXPECT_EQ(texts.second(0), 2);
}

TEST(Answers, RefuseASampleWithoutAnAnswerOrBeyondTheContext) {
  const auto with = [](const Ids& ids, std::int64_t second) {
    TokenTexts texts;
    texts.add(ids, second);
    return thrown<InvalidArgument>([&] { Answers(texts, 2, 0); });
  };
  EXPECT_EQ(with({1, 2}, 2), "sample 0 has 2 tokens of a prompt and 0 of an answer; it needs both");
  EXPECT_EQ(with({1, 2}, 0), "sample 0 has 0 tokens of a prompt and 2 of an answer; it needs both");
  EXPECT_EQ(with({1, 2, 3, 4}, 2),
            "sample 0 has 4 tokens, and a context of 2 takes one more than that");
}

TEST(Answers, AreRefusedWithThePlaceOfTheirRecord) {
  TokenTexts texts;
  texts.add(Ids{1, 2}, 1);
  texts.add(Ids{1, 2}, 0);
  const auto place_of = [](std::int64_t i) { return "a.jsonl, line " + std::to_string(10 * i); };
  EXPECT_EQ(thrown<InvalidArgument>([&] { Answers(texts, 2, 0, place_of); }),
            "a.jsonl, line 10: the sample has 0 tokens of a prompt and 2 of an answer; it needs "
            "both");
}

TEST(Answers, HaveNoTokensWhereThoseThatStayFillTheContext) {
  TokenTexts texts;
  EXPECT_TRUE(add_answer(texts, Ids{1, 2, 3}, Ids{5}, /*kept=*/3, /*most=*/2));
  EXPECT_EQ(texts.ids(0).size(), 3U);
  EXPECT_EQ(texts.second(0), 3) << "which the constructor refuses";
}

TEST(Answers, MayBeSorted) {
  TokenTexts texts;
  texts.add(Ids{1, 13, 2}, 2);
  EXPECT_TRUE(Answers(std::move(texts), 8, 0).may_be_sorted());
}

}  // namespace
}  // namespace echelon
