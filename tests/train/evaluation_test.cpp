// Which samples a validation uses, and in which order.
#include "echelon/train/evaluation.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "echelon/data/labelled_texts.h"
#include "echelon/data/mixture.h"

namespace echelon {
namespace {

using Indices = std::vector<std::int64_t>;

// A dataset that is only described.
struct Described : Dataset {
  std::int64_t samples = 0;
  Indices lengths = {};
  bool sorted = false;

  std::int64_t size() const override { return samples; }
  Batch get(std::span<const std::int64_t>) const override { return {}; }
  std::int64_t length(std::int64_t index) const override {
    return lengths.empty() ? 0 : lengths[std::size_t(index)];
  }
  bool may_be_sorted() const override { return sorted; }
};

Described of_size(std::int64_t samples, bool sorted) {
  Described data;
  data.samples = samples;
  data.sorted = sorted;
  return data;
}

std::shared_ptr<const Dataset> numbers(std::int64_t count) {
  return std::make_shared<TensorDataset>(at::zeros({count, 1}), at::arange(count, at::kLong));
}

// How many of the indices are in each of the ranges between these ends.
Indices counts_up_to(const Indices& ends, const Indices& indices) {
  Indices counts(ends.size());
  for (const auto i : indices)
    ++counts[std::size_t(std::upper_bound(ends.begin(), ends.end(), i) - ends.begin())];
  return counts;
}

TEST(EvaluationOrder, HasTheFirstSamplesOfAPlainText) {
  EXPECT_EQ(evaluation_order(of_size(1000, false), 5), (Indices{0, 1, 2, 3, 4}));
  EXPECT_EQ(evaluation_order(RandomTokens(8, 4, 1), 3), (Indices{0, 1, 2}));
}

TEST(EvaluationOrder, HasAllSamplesIfThereAreNoMore) {
  for (const bool sorted : {false, true})
    for (const std::int64_t samples : {4, 100})
      EXPECT_EQ(evaluation_order(of_size(4, sorted), samples), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(evaluation_order(Mixture({{numbers(2), 9}, {numbers(2), 1}}), 4),
            (Indices{0, 1, 2, 3}));
}

TEST(EvaluationOrder, IsAFixedRandomChoiceIfSamplesMayBeSorted) {
  const auto chosen = evaluation_order(of_size(1000, true), 200);
  EXPECT_EQ(std::set(chosen.begin(), chosen.end()).size(), 200U) << "no sample twice";
  for (const auto count : counts_up_to({250, 500, 750, 1000}, chosen)) {
    EXPECT_GT(count, 30) << "of 50 on average in each quarter";
    EXPECT_LT(count, 70);
  }
  EXPECT_EQ(evaluation_order(of_size(1000, true), 200), chosen) << "in every validation";
}

TEST(EvaluationOrder, HasEveryLabelOfTextsThatAreSortedByLabel) {
  constexpr std::int64_t count = 400, labels = 4;
  TokenTexts texts;
  std::vector<std::int32_t> sorted;
  for (std::int64_t i = 0; i < count; ++i) {
    texts.add(std::vector<std::int32_t>(std::size_t(1 + i % 5), 7));
    sorted.push_back(std::int32_t(i * labels / count));
  }
  const LabelledTexts data(std::move(texts), sorted, {.context = 8});
  const at::Tensor targets = data.get(evaluation_order(data, 60)).target;
  for (std::int64_t label = 0; label < labels; ++label)
    EXPECT_GT(targets.eq(label).sum().item<std::int64_t>(), 4) << "label " << label;
}

TEST(EvaluationOrder, DrawsFromThePartsOfAMixtureByWeight) {
  const Mixture mixture({{numbers(500), 7}, {numbers(300), 2}, {numbers(100), 1}});
  const auto chosen = evaluation_order(mixture, 100);
  EXPECT_EQ(counts_up_to({500, 800, 900}, chosen), (Indices{70, 20, 10}));
  EXPECT_EQ(std::set(chosen.begin(), chosen.end()).size(), 100U) << "no sample twice";
  EXPECT_EQ(evaluation_order(mixture, 100), chosen) << "in every validation";
}

TEST(EvaluationOrder, TakesTheRestFromOtherPartsOnceAPartHasNoMoreSamples) {
  const Mixture mixture({{numbers(5), 1}, {numbers(600), 1}, {numbers(600), 2}});
  EXPECT_EQ(counts_up_to({5, 605, 1205}, evaluation_order(mixture, 95)), (Indices{5, 30, 60}));
}

TEST(EvaluationOrder, BeginsWithTheLongest) {
  for (const bool sorted : {false, true}) {
    Described data = of_size(50, sorted);
    for (std::int64_t i = 0; i < 50; ++i) data.lengths.push_back(1 + i * 7 % 10);
    const auto order = evaluation_order(data, 20);
    ASSERT_EQ(order.size(), 20U);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return data.length(a) > data.length(b) || (data.length(a) == data.length(b) && a < b);
    }));
    Indices ascending = order, first(20);
    std::sort(ascending.begin(), ascending.end());
    std::iota(first.begin(), first.end(), 0);
    EXPECT_EQ(ascending == first, !sorted);
  }
}

}  // namespace
}  // namespace echelon
