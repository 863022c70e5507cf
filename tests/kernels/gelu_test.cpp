// GELU on raw memory against its formula in doubles.
#include "echelon/kernels/cpu/gelu.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

struct Point {
  double value, derivative;
};

Point plain(double x) {
  const double slope = std::sqrt(2 / std::numbers::pi),
               t = std::tanh(slope * (x + 0.044715 * x * x * x));
  return {x / 2 * (1 + t), (1 + t) / 2 + x / 2 * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x)};
}

TEST(GeluKernel, IsItsFormulaAtEveryLength) {
  for (const std::int64_t count : {0, 1, 3, 4, 15, 16, 17, 31, 1003}) {
    std::vector<float> x = noise(count, 1);
    for (float& value : x) value *= 12;
    const std::vector<float> grad = noise(count, 2);
    // One more element, which must stay unchanged.
    std::vector<float> y(x.size() + 1, 42.0f), grad_x = grad;
    grad_x.push_back(42.0f);
    cpu::tanh_gelu(x.data(), y.data(), count);
    cpu::tanh_gelu_backward(x.data(), grad_x.data(), count);
    std::vector<double> expected, expected_grad;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Point point = plain(static_cast<double>(x[i]));
      expected.push_back(point.value);
      expected_grad.push_back(point.derivative * static_cast<double>(grad[i]));
    }
    expected.push_back(42);
    expected_grad.push_back(42);
    EXPECT_TRUE(close(y, expected, 2e-7)) << count;
    EXPECT_TRUE(close(grad_x, expected_grad, 2e-7)) << count;
  }
}

TEST(GeluKernel, HasTheSameBitsWhereverARangeBegins) {
  constexpr std::int64_t count = 203;
  const std::vector<float> x = noise(count, 1);
  std::vector<float> whole(count), parts(count);
  cpu::tanh_gelu(x.data(), whole.data(), count);
  for (std::int64_t begin = 0, length = 1; begin < count; begin += length, length += 7) {
    length = std::min(length, count - begin);
    cpu::tanh_gelu(x.data() + begin, parts.data() + begin, length);
  }
  EXPECT_EQ(parts, whole);
}

}  // namespace
}  // namespace echelon::kernels
