#include "echelon/data/token_texts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Ids = std::vector<std::int32_t>;

Ids ids_of(const TokenTexts& texts, std::int64_t i) {
  const auto ids = texts.ids(i);
  return {ids.begin(), ids.end()};
}

TEST(TokenTexts, KeepTextsOfDifferentLengthsAndWhereTheirSecondPartsBegin) {
  TokenTexts texts, more;
  texts.add(Ids{1, 2, 3});
  texts.add(Ids{});
  more.add(Ids{4, 5}, 1);
  texts.add(more);
  ASSERT_EQ(texts.size(), 3);
  EXPECT_EQ(ids_of(texts, 0), (Ids{1, 2, 3}));
  EXPECT_EQ(ids_of(texts, 1), Ids{});
  EXPECT_EQ(ids_of(texts, 2), (Ids{4, 5}));
  EXPECT_EQ(texts.second(0), 3);
  EXPECT_EQ(texts.second(2), 1);
  EXPECT_EQ(texts.longest(), 3);
  EXPECT_EQ(texts.tokens(), 5);
}

TEST(TokenTexts, AreTheSameWithAnyNumberOfThreads) {
  constexpr std::int64_t count = 1000;  // more than a block, and not whole blocks
  const auto encode = [](std::int64_t i, TokenTexts& to) {
    to.add(Ids(std::size_t(i % 7), std::int32_t(i)), i % 3);
  };
  const TokenTexts one = encode_texts(count, 1, encode), four = encode_texts(count, 4, encode);
  ASSERT_EQ(one.size(), count);
  ASSERT_EQ(four.size(), count);
  for (std::int64_t i = 0; i < count; ++i) {
    EXPECT_EQ(ids_of(one, i), Ids(std::size_t(i % 7), std::int32_t(i)));
    EXPECT_EQ(ids_of(four, i), ids_of(one, i));
    EXPECT_EQ(four.second(i), one.second(i));
  }
}

TEST(TokenTexts, ThrowWhatTheFirstTextThrewThatCouldNotBeEncoded) {
  for (const int threads : {1, 4})
    EXPECT_EQ(thrown<InvalidArgument>([&] {
                encode_texts(2000, threads, [](std::int64_t i, TokenTexts& to) {
                  if (i >= 300) throw InvalidArgument("text " + std::to_string(i));
                  to.add(Ids{1});
                });
              }),
              "text 300")
        << threads;
}

}  // namespace
}  // namespace echelon
