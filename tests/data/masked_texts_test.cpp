#include "echelon/data/masked_texts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Ids = std::vector<std::int32_t>;
using Indices = std::vector<std::int64_t>;

constexpr std::int32_t classifier = 1, separator = 2, mask = 3, vocab = 1000;

Masking masking(double share = 0.15, std::uint64_t seed = 1) {
  return {.seed = seed,
          .share = share,
          .mask = mask,
          .vocab = vocab,
          .special = {0, classifier, separator, mask}};
}

// Texts of 20, 21, … words, each word another token.
TokenTexts some_texts(std::int64_t count) {
  TokenTexts texts;
  for (std::int64_t i = 0; i < count; ++i) {
    Ids ids = {classifier};
    for (std::int32_t w = 0; w < 20 + i; ++w) ids.push_back(100 + w);
    ids.push_back(separator);
    texts.add(ids);
  }
  return texts;
}

MaskedTexts some_data(std::int64_t count, Masking how = masking()) {
  return {some_texts(count), {.context = 64}, std::move(how)};
}

TEST(MaskedTexts, HideTheSameShareOfEveryTextAndNeverSpecialTokens) {
  const MaskedTexts data = some_data(8);
  for (std::int64_t epoch = 0; epoch < 50; ++epoch)
    for (std::int64_t i = 0; i < data.size(); ++i) {
      const auto index = i + epoch * data.size();
      EXPECT_EQ(data.targets(index),
                i == 0 ? 3 : (20 + i) * 15 / 100 + ((20 + i) * 15 % 100 >= 50));
      const Batch batch = data.get(Indices{index});
      const at::Tensor hidden = batch.target[0].ne(-100);
      EXPECT_EQ(hidden.sum().item<std::int64_t>(), data.targets(index));
      EXPECT_FALSE(hidden[0].item<bool>()) << "[CLS]";
      EXPECT_FALSE(hidden[21 + i].item<bool>()) << "[SEP]";
    }
}

TEST(MaskedTexts, ReplaceEightTenthsByTheMaskAndOneTenthByRandomTokens) {
  const MaskedTexts data = some_data(1, masking(1));
  const auto whole = some_texts(1);
  const auto words = whole.ids(0);
  std::map<std::string, double> share;
  std::int64_t least = vocab, most = 0;
  constexpr std::int64_t epochs = 2000;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    const Batch batch = data.get(Indices{epoch});
    for (std::int64_t at = 1; at <= 20; ++at) {
      const auto now = batch.input[0][at].item<std::int64_t>();
      EXPECT_EQ(batch.target[0][at].item<std::int64_t>(), words[std::size_t(at)]);
      const bool kept = now == words[std::size_t(at)];
      share[now == mask ? "mask" : kept ? "kept" : "random"] += 1.0 / (20 * epochs);
      if (now == mask || kept) continue;
      least = std::min(least, now);
      most = std::max(most, now);
    }
  }
  EXPECT_NEAR(share["mask"], 0.8, 0.01);
  EXPECT_NEAR(share["kept"], 0.1, 0.01);
  EXPECT_NEAR(share["random"], 0.1, 0.01);
  EXPECT_LT(least, 20) << "of the whole vocabulary";
  EXPECT_GT(most, vocab - 20);
  EXPECT_LT(most, vocab);
}

TEST(MaskedTexts, HideOtherWordsInEveryEpochAndWithAnotherSeed) {
  const MaskedTexts data = some_data(4), other = some_data(4, masking(0.15, 2));
  const auto hidden = [](const MaskedTexts& of, std::int64_t index) {
    return of.get(Indices{index}).target;
  };
  EXPECT_TRUE(at::equal(hidden(data, 2), hidden(data, 2)));
  int differ = 0;
  for (std::int64_t epoch = 1; epoch <= 20; ++epoch)
    differ += !at::equal(hidden(data, 2), hidden(data, 2 + 4 * epoch));
  EXPECT_GE(differ, 19);
  EXPECT_FALSE(at::equal(hidden(data, 2), hidden(other, 2)));
}

TEST(MaskedTexts, AreTheSameInAnyBatch) {
  const MaskedTexts data = some_data(4);
  const Batch together = data.get_padded(Indices{1, 7, 2}, 40),
              alone = data.get_padded(Indices{7}, 40);
  EXPECT_TRUE(at::equal(together.input[1], alone.input[0]));
  EXPECT_TRUE(at::equal(together.target[1], alone.target[0]));
  EXPECT_EQ(data.length(7), data.length(3));
}

TEST(MaskedTexts, SkipTextsWithoutWords) {
  TokenTexts texts;
  texts.add(Ids{classifier, separator});
  EXPECT_EQ(thrown<InvalidArgument>([&] { MaskedTexts(texts, {.context = 64}, masking()); }),
            "all texts have only special tokens: there is no word to mask");
  texts.add(some_texts(2));
  const MaskedTexts data(texts, {.context = 64}, masking());
  EXPECT_EQ(data.skipped(), 1);
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data.length(0), std::ssize(some_texts(2).ids(0)));
  EXPECT_EQ(data.get(Indices{1}).target.ne(-100).sum().item<std::int64_t>(), data.targets(1));
}

TEST(MaskedTexts, MayBeSorted) { EXPECT_TRUE(some_data(2).may_be_sorted()); }

}  // namespace
}  // namespace echelon
