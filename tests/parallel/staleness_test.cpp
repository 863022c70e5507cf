#include "echelon/parallel/data/staleness.h"

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace echelon {
namespace {

// Gradients with a known direction and known noise, as ranks with these samples would see them. The
// true gradient turns by `turn` in every update.
GradientNoise measured(const std::vector<double>& samples, double signal, double variance,
                       std::int64_t lag, double turn) {
  constexpr std::int64_t size = 2000, steps = 400;
  at::manual_seed(5);
  const double batch = std::accumulate(samples.begin(), samples.end(), 0.0);
  std::vector<GradientProbe> probes(samples.size(), GradientProbe(lag));
  GradientSums all;
  for (std::int64_t step = 0; step < steps; ++step) {
    const at::Tensor truth = at::zeros({size}, at::kDouble);
    truth[0] = std::sqrt(signal) * std::cos(turn * double(step));
    truth[1] = std::sqrt(signal) * std::sin(turn * double(step));
    at::Tensor mean = at::zeros({size}, at::kDouble);
    for (std::size_t r = 0; r < samples.size(); ++r) {
      const double weight = samples[r] / batch;
      const at::Tensor share =
          weight * (truth + at::randn({size}, at::kDouble) *
                                std::sqrt(variance / double(size) / samples[r]));
      mean = mean + share;
      const auto half = size / 3;  // in two buckets
      probes[r].share(share.narrow(0, 0, half), weight);
      probes[r].share(share.narrow(0, half, size - half), weight);
    }
    for (auto& probe : probes) probe.mean(mean);
  }
  for (std::size_t r = 0; r < probes.size(); ++r) {
    auto mine = probes[r].take();
    if (r > 0) mine = {.shares = mine.shares};
    all += mine;
  }
  EXPECT_EQ(all.steps, double(steps));
  return GradientNoise(all, int(samples.size()), batch);
}

TEST(GradientNoise, IsEstimatedCorrectly) {
  for (const auto& samples : {std::vector<double>{4, 4}, {8, 2, 2}, {1, 1, 1, 13}}) {
    const auto noise = measured(samples, 3.0, 60.0, 2, 0.1);
    EXPECT_NEAR(noise.signal, 3.0, 0.1);
    EXPECT_NEAR(noise.variance, 60.0, 1.0);
    EXPECT_NEAR(noise.scale(), 20.0, 1.0);
  }
}

TEST(GradientNoise, TellsHowFastGradientsTurn) {
  for (const double turn : {0.0, 0.2, 0.7})
    for (const std::int64_t lag : {1, 3})
      EXPECT_NEAR(measured({8, 8}, 3.0, 6.0, lag, turn).coherence, std::cos(turn * double(lag)),
                  0.05)
          << turn << " in an update, " << lag << " updates";
}

TEST(GradientNoise, IsInfiniteWithoutASignal) {
  const GradientNoise noise({.shares = 10, .means = 4, .products = 1, .steps = 1, .pairs = 1}, 2,
                            8);
  EXPECT_LT(noise.signal, 0);
  EXPECT_EQ(noise.scale(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(noise.coherence, 0);
}

// Intervals that contain only noise disagree with each other.
TEST(GradientNoise, IsUncertainWithoutASignal) {
  NoiseHistory sure(2, 8), unsure(2, 8);
  for (int i = 0; i < 20; ++i) {
    sure.add({.shares = 10.0 + i % 2, .means = 8, .products = 5, .steps = 1, .pairs = 1});
    unsure.add({.shares = 10.0 + 8 * (i % 2), .means = 7.3, .products = 5, .steps = 1, .pairs = 1});
  }
  EXPECT_NEAR(sure.noise().signal, 2 * 8 - 10.5, 0.2);
  EXPECT_TRUE(sure.noise().certain());
  EXPECT_GT(unsure.noise().signal, 0);
  EXPECT_FALSE(unsure.noise().certain());
}

TEST(GradientProbe, PairsNoGradientsAcrossForget) {
  GradientProbe probe(1);
  const at::Tensor one = at::zeros({4}, at::kDouble).fill_(1);
  probe.mean(one);
  probe.forget();
  probe.mean(one);
  EXPECT_EQ(probe.take().pairs, 0);
  probe.mean(one);
  const auto sums = probe.take();
  EXPECT_EQ(sums.pairs, 1);
  EXPECT_EQ(sums.products, 4);
  EXPECT_EQ(probe.take().steps, 0);
}

StalenessCase fine() {
  GradientNoise noise({}, 2, 8);
  noise.signal = 1;
  noise.variance = 80;
  noise.coherence = 0.9;
  return {3, 8, noise, 0.3, 0.12, false};
}

TEST(Staleness, IsAllowedOnlyUnderTheCondition) {
  EXPECT_FALSE(fine().objection());
  StalenessCase covered = fine();
  covered.noise.error = 0.6;
  EXPECT_NE(covered.objection().value_or("").find("noise"), std::string::npos);
  // A tenth of the noise scale and a staleness of three: (1 + 4/10) / (1 + 1/10).
  EXPECT_NEAR(fine().cost(), 1.4 / 1.1, 1e-12);

  StalenessCase rising = fine();
  rising.rate_rises = true;
  EXPECT_NE(rising.objection().value_or("").find("rate"), std::string::npos);

  StalenessCase turning = fine();
  turning.noise.coherence = 0.4;
  EXPECT_NE(turning.objection().value_or("").find("turn"), std::string::npos);

  StalenessCase quiet = fine();  // all samples agree: stale gradients only cost
  quiet.noise.variance = 0.01;
  EXPECT_NE(quiet.objection().value_or("").find("pay"), std::string::npos);

  StalenessCase even = fine();  // no rank waits for another
  even.stale_seconds = 0.29;
  EXPECT_NE(even.objection().value_or("").find("pay"), std::string::npos);
}

TEST(Staleness, IsPredictedFromTheSpeedOfAllWorkers) {
  EXPECT_NEAR(stale_seconds({1, 1, 1, 1}, 0, 3), 1, 1e-12);
  EXPECT_NEAR(stale_seconds({1, 1, 1, 3}, 0, 3), 1.2, 1e-12);
  EXPECT_NEAR(stale_seconds({1, 1}, 0.5, 3), 1.5, 1e-12);
  // The bound: while the slowest worker computes one share, two updates pass.
  EXPECT_NEAR(stale_seconds({1, 30}, 0, 1), 15, 1e-12);
}

TEST(LossBand, ReachesThreeDeviationsAboveTheMean) {
  LossBand band(4);
  for (const double loss : {9.0, 1.0, 3.0, 1.0}) {
    EXPECT_FALSE(band.known());
    band.add(loss);
  }
  EXPECT_TRUE(band.known());
  band.add(3.0);  // the first has dropped out
  EXPECT_NEAR(band.top(), 2 + 3 * std::sqrt(4.0 / 3.0), 1e-12);
}

}  // namespace
}  // namespace echelon
