// GELU and its tanh approximation on raw memory against their formulas in doubles.
#include "echelon/kernels/cpu/gelu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

struct Point {
  double value, derivative;
};

Point exact(double x) {
  const double distribution = std::erfc(-x / std::numbers::sqrt2) / 2,
               density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  return {x * distribution, distribution + x * density};
}

Point by_tanh(double x) {
  const double slope = std::sqrt(2 / std::numbers::pi),
               t = std::tanh(slope * (x + 0.044715 * x * x * x));
  return {x / 2 * (1 + t), (1 + t) / 2 + x / 2 * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x)};
}

struct Gelu {
  const char* name;
  Point (*plain)(double);
  void (*forward)(const float*, float*, std::int64_t);
  void (*backward)(const float*, float*, std::int64_t);
};
constexpr Gelu both[] = {{"exact", exact, cpu::gelu, cpu::gelu_backward},
                         {"tanh", by_tanh, cpu::tanh_gelu, cpu::tanh_gelu_backward}};

TEST(GeluKernel, IsItsFormulaAtEveryLength) {
  for (const Gelu& gelu : both)
    for (const std::int64_t count : {0, 1, 3, 4, 15, 16, 17, 31, 1003}) {
      std::vector<float> x = noise(count, 1);
      for (float& value : x) value *= 12;
      const std::vector<float> grad = noise(count, 2);
      // One more element, which must stay unchanged.
      std::vector<float> y(x.size() + 1, 42.0f), grad_x = grad;
      grad_x.push_back(42.0f);
      gelu.forward(x.data(), y.data(), count);
      gelu.backward(x.data(), grad_x.data(), count);
      std::vector<double> expected, expected_grad;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Point point = gelu.plain(static_cast<double>(x[i]));
        expected.push_back(point.value);
        expected_grad.push_back(point.derivative * static_cast<double>(grad[i]));
      }
      expected.push_back(42);
      expected_grad.push_back(42);
      EXPECT_TRUE(close(y, expected, 2e-7)) << gelu.name << ", " << count;
      EXPECT_TRUE(close(grad_x, expected_grad, 2e-7)) << gelu.name << ", " << count;
    }
}

TEST(GeluKernel, IsAccurateWhereItsValuesAreSmall) {
  for (float x = -9; x < 9; x += 0.0103f) {
    float y = 0;
    cpu::gelu(&x, &y, 1);
    const double expected = exact(static_cast<double>(x)).value;
    EXPECT_NEAR(static_cast<double>(y) / expected, 1, 1e-5) << x;
  }
}

TEST(GeluKernel, StaysFiniteFarOutAndPassesNotANumberOn) {
  for (const Gelu& gelu : both) {
    const std::vector<float> x = {1e30f, -1e30f, 13.5f, -13.5f,
                                  std::numeric_limits<float>::quiet_NaN()};
    std::vector<float> y(x.size()), grad(x.size(), 1.0f);
    gelu.forward(x.data(), y.data(), std::ssize(x));
    gelu.backward(x.data(), grad.data(), std::ssize(x));
    EXPECT_EQ(y[0], 1e30f) << gelu.name;
    EXPECT_NEAR(y[1], 0, 1e-30) << gelu.name;
    EXPECT_EQ(y[2], 13.5f) << gelu.name;
    EXPECT_NEAR(y[3], 0, 1e-30) << gelu.name;
    EXPECT_TRUE(std::isnan(y[4])) << gelu.name;
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(grad[i], x[i] > 0 ? 1 : 0, 1e-20) << gelu.name << " at " << x[i];
    EXPECT_TRUE(std::isnan(grad[4])) << gelu.name;
  }
}

TEST(GeluKernel, HasTheSameBitsWhereverARangeBegins) {
  constexpr std::int64_t count = 203;
  const std::vector<float> x = noise(count, 1);
  for (const Gelu& gelu : both) {
    std::vector<float> whole(count), parts(count);
    gelu.forward(x.data(), whole.data(), count);
    for (std::int64_t begin = 0, length = 1; begin < count; begin += length, length += 7) {
      length = std::min(length, count - begin);
      gelu.forward(x.data() + begin, parts.data() + begin, length);
    }
    EXPECT_EQ(parts, whole) << gelu.name;
  }
}

}  // namespace
}  // namespace echelon::kernels
