#include "echelon/parallel/pipeline/balance.h"

#include <gtest/gtest.h>

namespace echelon {
namespace {

std::vector<LayerCost> costs(const std::vector<double>& seconds) {
  std::vector<LayerCost> layers;
  for (const double one : seconds) layers.push_back({.seconds = one});
  return layers;
}

std::vector<double> seconds(const std::vector<LayerCost>& layers) {
  std::vector<double> all;
  for (const auto& layer : layers) all.push_back(layer.seconds);
  return all;
}

TEST(Balance, CutsEqualLayersEquallyDespiteNoise) {
  // Eight blocks of 1 ms between an embedding and a head, measured on a machine that was busy three
  // times.
  auto layers = costs({0.1, 1.0, 4.2, 1.1, 1.0, 1.2, 1.0, 9.0, 2.5, 0.1});
  const PipelineShape shape{.ranks = 2, .micro_batches = 4};
  const std::vector<StageLayers> equal = {{0, 5}, {5, 10}};
  EXPECT_NE(balance(layers, BalanceBy::time, PipelineOrder::one_f_one_b, shape), equal)
      << "the noise of this test is too small";
  std::vector<std::string> kinds(10, "block");
  kinds.front() = "embedding";
  kinds.back() = "head";
  share_times(layers, kinds);
  EXPECT_EQ(seconds(layers), (std::vector<double>{0.1, 1, 1, 1, 1, 1, 1, 1, 1, 0.1}));
  EXPECT_EQ(balance(layers, BalanceBy::time, PipelineOrder::one_f_one_b, shape), equal);
}

TEST(Balance, GivesEachKindItsOwnTimeAndLeavesUniqueLayersAlone) {
  auto layers = costs({3, 8, 2, 7, 5, 4});
  share_times(layers, {"wide", "", "wide", "narrow", "", "narrow"});
  EXPECT_EQ(seconds(layers), (std::vector<double>{2, 8, 2, 4, 5, 4}));
}

}  // namespace
}  // namespace echelon
