// GELU against its formula in doubles.
#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "echelon/nn/gelu.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// x times the logistic function of 2u: the same formula without the cancellation in 1 + tanh(u).
at::Tensor plain(const at::Tensor& x) {
  const double slope = 2 * std::sqrt(2 / std::numbers::pi);
  return x * (slope * (x + 0.044715 * x * x * x)).sigmoid();
}

at::Tensor gradient(const at::Tensor& x, const at::Tensor& grad) {
  at::Tensor out = grad.clone();
  tanh_gelu_backward_(out, x);
  return out;
}

TEST(Gelu, MatchesItsFormulaAtEveryLength) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 31, 100, 100003}) {
    const at::Tensor x = at::linspace(-12, 12, length, at::kFloat),
                     grad = at::linspace(1, 2, length, at::kFloat);
    const at::Tensor leaf = x.to(at::kDouble).set_requires_grad(true);
    const at::Tensor expected = plain(leaf);
    expected.backward(grad.to(at::kDouble));
    EXPECT_TRUE(close(tanh_gelu(x), expected, 1e-7)) << length;
    EXPECT_TRUE(close(gradient(x, grad), leaf.grad(), 2e-7)) << length;
  }
}

TEST(Gelu, IsAccurateWhereItsValuesAreSmall) {
  const at::Tensor x = at::cat(
      {at::linspace(-5, -1, 1001), at::logspace(-30, 0, 1001), at::logspace(-30, 0, 1001).neg()});
  const at::Tensor leaf = x.to(at::kDouble).set_requires_grad(true);
  const at::Tensor expected = plain(leaf);
  expected.sum().backward();
  EXPECT_TRUE(close(tanh_gelu(x).to(at::kDouble) / expected, at::ones_like(expected), 5e-6));
  // The gradient crosses zero at -0.75.
  const at::Tensor away = (leaf + 0.75).abs() > 0.1;
  EXPECT_TRUE(close((gradient(x, at::ones_like(x)).to(at::kDouble) / leaf.grad()).index({away}),
                    at::ones_like(leaf).index({away}), 5e-6));
}

TEST(Gelu, ReachesItsLimits) {
  const float most = std::numeric_limits<float>::max();
  const at::Tensor x = at::tensor({infinity, -infinity, most, -most, 1e3f, -1e3f, std::nanf("")});
  EXPECT_TRUE(
      close(tanh_gelu(x).slice(0, 1, 6), at::tensor({0.0f, most, 0.0f, 1e3f, 0.0f}), 1e-38));
  EXPECT_EQ(tanh_gelu(x)[0].item<float>(), infinity);
  EXPECT_TRUE(close(gradient(x, at::ones_like(x)).slice(0, 0, 6),
                    at::tensor({1.0f, 0.0f, 1.0f, 0.0f, 1.0f, 0.0f}), 1e-30));
  EXPECT_TRUE(std::isnan(tanh_gelu(x)[6].item<float>()));
  EXPECT_TRUE(std::isnan(gradient(x, at::ones_like(x))[6].item<float>()));
}

TEST(Gelu, HasTheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const at::Tensor x = at::linspace(-6, 6, 100003, at::kFloat), grad = at::linspace(1, 2, 100003);
  at::set_num_threads(1);
  const at::Tensor alone = tanh_gelu(x), grad_alone = gradient(x, grad);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(tanh_gelu(x), alone)) << threads << " threads";
    EXPECT_TRUE(at::equal(gradient(x, grad), grad_alone)) << threads << " threads";
  }
  at::set_num_threads(before);
}

TEST(Gelu, AcceptsOtherTypesAndLayouts) {
  const at::Tensor x = at::linspace(-3, 3, 60, at::kDouble).view({6, 10});
  EXPECT_TRUE(close(tanh_gelu(x), plain(x), 1e-12));
  const at::Tensor turned = x.to(at::kFloat).t();
  EXPECT_TRUE(close(tanh_gelu(turned), plain(x.t()), 1e-6));
}

}  // namespace
}  // namespace echelon
