// GELU and its tanh approximation against their formulas in doubles.
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
at::Tensor by_tanh(const at::Tensor& x) {
  const double slope = 2 * std::sqrt(2 / std::numbers::pi);
  return x * (slope * (x + 0.044715 * x * x * x)).sigmoid();
}

at::Tensor exact(const at::Tensor& x) { return x * (x / -std::numbers::sqrt2).erfc() / 2; }

struct Gelu {
  const char* name;
  at::Tensor (*plain)(const at::Tensor&);
  at::Tensor (*forward)(const at::Tensor&);
  void (*backward)(at::Tensor, const at::Tensor&);

  at::Tensor gradient(const at::Tensor& x, const at::Tensor& grad) const {
    at::Tensor out = grad.clone();
    backward(out, x);
    return out;
  }
};
constexpr Gelu both[] = {{"exact", exact, exact_gelu, exact_gelu_backward_},
                         {"tanh", by_tanh, tanh_gelu, tanh_gelu_backward_}};

TEST(Gelu, MatchesItsFormulaAtEveryLength) {
  for (const Gelu& one : both) {
    SCOPED_TRACE(one.name);
    for (const std::int64_t length : {1, 2, 15, 16, 17, 31, 100, 100003}) {
      const at::Tensor x = at::linspace(-12, 12, length, at::kFloat),
                       grad = at::linspace(1, 2, length, at::kFloat);
      const at::Tensor leaf = x.to(at::kDouble).set_requires_grad(true);
      const at::Tensor expected = one.plain(leaf);
      expected.backward(grad.to(at::kDouble));
      EXPECT_TRUE(close(one.forward(x), expected, 1e-7)) << length;
      EXPECT_TRUE(close(one.gradient(x, grad), leaf.grad(), 2e-7)) << length;
    }
  }
}

TEST(Gelu, IsAccurateWhereItsValuesAreSmall) {
  for (const Gelu& one : both) {
    SCOPED_TRACE(one.name);
    const at::Tensor x = at::cat(
        {at::linspace(-5, -1, 1001), at::logspace(-30, 0, 1001), at::logspace(-30, 0, 1001).neg()});
    const at::Tensor leaf = x.to(at::kDouble).set_requires_grad(true);
    const at::Tensor expected = one.plain(leaf);
    expected.sum().backward();
    EXPECT_TRUE(close(one.forward(x).to(at::kDouble) / expected, at::ones_like(expected), 5e-6));
    // The gradient crosses zero at -0.75.
    const at::Tensor away = (leaf + 0.75).abs() > 0.1;
    EXPECT_TRUE(
        close((one.gradient(x, at::ones_like(x)).to(at::kDouble) / leaf.grad()).index({away}),
              at::ones_like(leaf).index({away}), 5e-6));
  }
}

TEST(Gelu, ReachesItsLimits) {
  for (const Gelu& one : both) {
    SCOPED_TRACE(one.name);
    const float most = std::numeric_limits<float>::max();
    const at::Tensor x = at::tensor({infinity, -infinity, most, -most, 1e3f, -1e3f, std::nanf("")});
    EXPECT_TRUE(
        close(one.forward(x).slice(0, 1, 6), at::tensor({0.0f, most, 0.0f, 1e3f, 0.0f}), 1e-38));
    EXPECT_EQ(one.forward(x)[0].item<float>(), infinity);
    EXPECT_TRUE(close(one.gradient(x, at::ones_like(x)).slice(0, 0, 6),
                      at::tensor({1.0f, 0.0f, 1.0f, 0.0f, 1.0f, 0.0f}), 1e-30));
    EXPECT_TRUE(std::isnan(one.forward(x)[6].item<float>()));
    EXPECT_TRUE(std::isnan(one.gradient(x, at::ones_like(x))[6].item<float>()));
  }
}

TEST(Gelu, HasTheSameBitsWithAnyNumberOfThreads) {
  for (const Gelu& one : both) {
    SCOPED_TRACE(one.name);
    const int before = at::get_num_threads();
    const at::Tensor x = at::linspace(-6, 6, 100003, at::kFloat), grad = at::linspace(1, 2, 100003);
    at::set_num_threads(1);
    const at::Tensor alone = one.forward(x), grad_alone = one.gradient(x, grad);
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(one.forward(x), alone)) << threads << " threads";
      EXPECT_TRUE(at::equal(one.gradient(x, grad), grad_alone)) << threads << " threads";
    }
    at::set_num_threads(before);
  }
}

TEST(Gelu, AcceptsOtherTypesAndLayouts) {
  for (const Gelu& one : both) {
    SCOPED_TRACE(one.name);
    const at::Tensor x = at::linspace(-3, 3, 60, at::kDouble).view({6, 10});
    EXPECT_TRUE(close(one.forward(x), one.plain(x), 1e-12));
    const at::Tensor turned = x.to(at::kFloat).t();
    EXPECT_TRUE(close(one.forward(turned), one.plain(x.t()), 1e-6));
  }
}

}  // namespace
}  // namespace echelon
