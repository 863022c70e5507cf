// SwiGLU on raw memory against its formula in doubles.
#include "echelon/kernels/cpu/swiglu.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

TEST(SwigluKernel, IsItsFormulaAtEveryWidth) {
  constexpr std::int64_t rows = 3;
  for (const std::int64_t width : {1, 3, 4, 15, 16, 17, 31, 203}) {
    std::vector<float> hidden = noise(rows * 2 * width, 1);
    for (float& value : hidden) value *= 12;
    const std::vector<float> grad = noise(rows * width, 2);
    // One more element, which must stay unchanged.
    std::vector<float> y(grad.size() + 1, 42.0f), grad_hidden(hidden.size() + 1, 42.0f);
    cpu::swiglu(hidden.data(), y.data(), rows, width);
    cpu::swiglu_backward(hidden.data(), grad.data(), grad_hidden.data(), rows, width);
    std::vector<double> expected(y.size(), 42), expected_grad(grad_hidden.size(), 42);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = std::size_t(row * 2 * width + i), up_at = at + std::size_t(width),
                   out = std::size_t(row * width + i);
        const double gate = hidden[at], up = hidden[up_at], g = grad[out],
                     s = 1 / (1 + std::exp(-gate));
        expected[out] = gate * s * up;
        expected_grad[at] = g * up * (s + gate * s * (1 - s));
        expected_grad[up_at] = g * gate * s;
      }
    EXPECT_TRUE(close(y, expected, 3e-7)) << width;
    EXPECT_TRUE(close(grad_hidden, expected_grad, 3e-7)) << width;
  }
}

TEST(SwigluKernel, PropagatesNaNAndStaysFiniteElsewhere) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> hidden = {-1e30f, 1e30f, nan, 1, 1, 1, 1, nan};  // gates, then ups
  const std::vector<float> grad = {1, 1, 1, 1};
  std::vector<float> y(4), grad_hidden(8);
  cpu::swiglu(hidden.data(), y.data(), 1, 4);
  cpu::swiglu_backward(hidden.data(), grad.data(), grad_hidden.data(), 1, 4);
  EXPECT_NEAR(y[0], 0, 1e-6);
  EXPECT_EQ(y[1], 1e30f);
  EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3]));
  EXPECT_NEAR(grad_hidden[0], 0, 1e-6);
  EXPECT_NEAR(grad_hidden[1], 1, 1e-6);
  EXPECT_TRUE(std::isnan(grad_hidden[2]) && std::isnan(grad_hidden[3]));
}

}  // namespace
}  // namespace echelon::kernels
