#include "echelon/data/dataset.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Indices = std::vector<std::int64_t>;

std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

TEST(TensorDataset, SelectsRows) {
  const TensorDataset data(at::arange(12, at::kLong).view({4, 3}),
                           at::arange(4, at::kLong).mul(100));
  EXPECT_EQ(data.size(), 4);
  const Batch batch = data.get(Indices{2, 0, 2});
  EXPECT_EQ(batch.input.sizes(), (Indices{3, 3}));
  EXPECT_EQ(values(batch.input), (Indices{6, 7, 8, 0, 1, 2, 6, 7, 8}));
  EXPECT_EQ(values(batch.target), (Indices{200, 0, 200}));
}

TEST(TensorDataset, GivesABatchOfItsOwn) {
  const at::Tensor inputs = at::arange(4, at::kLong);
  const TensorDataset data(inputs, inputs);
  data.get(Indices{0, 1, 2, 3}).input.zero_();
  EXPECT_EQ(values(inputs), (Indices{0, 1, 2, 3}));
}

TEST(TensorDataset, RefusesUnequalFirstDimensions) {
  EXPECT_EQ(thrown<InvalidArgument>([] {
              TensorDataset(at::zeros({4, 3}), at::zeros({5}));
            }),
            "inputs 4x3 and targets 5 must have the same first dimension, one row a sample");
  EXPECT_EQ(thrown<InvalidArgument>([] {
              TensorDataset(at::zeros({0, 3}), at::zeros({0, 1}));
            }),
            "inputs 0x3 and targets 0x1 must have the same first dimension, one row a sample");
  EXPECT_NE(thrown<InvalidArgument>([] { TensorDataset(at::zeros({}), at::zeros({})); }),
            "(nothing was thrown)");
}

TEST(RandomTokens, AreOfTheVocabularyAndPredictTheNext) {
  const RandomTokens data(37, 50, 1);
  const Batch batch = data.get(Indices{0, 1, (std::int64_t{1} << 40) - 1});
  ASSERT_EQ(batch.input.sizes(), (Indices{3, 50}));
  const auto tokens = values(batch.input);
  EXPECT_GE(*std::min_element(tokens.begin(), tokens.end()), 0);
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 37);
  EXPECT_EQ(values(batch.target.narrow(1, 0, 49)), values(batch.input.narrow(1, 1, 49)));
  const Batch longer = RandomTokens(37, 51, 1).get(Indices{0, 1, (std::int64_t{1} << 40) - 1});
  EXPECT_EQ(values(batch.target), values(longer.input.narrow(1, 1, 50))) << "the last one, too";
}

TEST(RandomTokens, DrawEveryTokenAboutEquallyOften) {
  const RandomTokens data(10, 1000, 1);
  std::vector<int> times(10);
  for (const auto token : values(data.get(Indices{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).input)) {
    ++times[static_cast<std::size_t>(token)];
  }
  for (std::size_t token = 0; token < 10; ++token) {
    EXPECT_NEAR(times[token], 1000, 120) << "token " << token;  // four standard deviations
  }
}

TEST(RandomTokens, AreAPureFunctionOfSeedAndIndex) {
  const RandomTokens data(256, 20, 1);
  const Batch pair = data.get(Indices{5, 6});
  EXPECT_TRUE(at::equal(pair.input[0], data.get(Indices{5}).input[0]));
  EXPECT_TRUE(at::equal(pair.target[1], RandomTokens(256, 20, 1).get(Indices{6}).target[0]));
  EXPECT_FALSE(at::equal(pair.input[0], pair.input[1]));
  EXPECT_FALSE(at::equal(pair.input[0], RandomTokens(256, 20, 2).get(Indices{5}).input[0]));
}

}  // namespace
}  // namespace echelon
