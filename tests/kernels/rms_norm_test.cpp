// RMS norms on raw memory against their formula in doubles.
#include "echelon/kernels/cpu/rms_norm.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

TEST(RmsNormKernel, IsItsFormulaAtEveryWidth) {
  constexpr std::int64_t rows = 5;
  constexpr double epsilon = 1e-3;
  for (const std::int64_t width : {1, 3, 4, 15, 16, 17, 31, 203}) {
    const std::vector<float> x = noise(rows * width, 1), grad = noise(rows * width, 2),
                             weight = noise(width, 3);
    // One more element, which must stay unchanged.
    std::vector<float> y(x.size() + 1, 42.0f), rstd(rows + 1, 42.0f), grad_x(x.size() + 1, 42.0f),
        grad_weight(weight.size() + 1, 42.0f);
    const cpu::RmsRows of{x.data(), weight.data(), rows, width};
    cpu::rms_norm(of, float(epsilon), y.data(), rstd.data());
    cpu::rms_norm_backward(of, rstd.data(), grad.data(), grad_x.data(), grad_weight.data());
    std::vector<double> expected(y.size(), 42), expected_rstd(rstd.size(), 42),
        expected_x(y.size(), 42), expected_weight(grad_weight.size(), 0);
    expected_weight.back() = 42;
    for (std::int64_t row = 0; row < rows; ++row) {
      double squares = 0, products = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = std::size_t(row * width + i);
        squares += double(x[at]) * double(x[at]);
        products += double(grad[at]) * double(weight[std::size_t(i)]) * double(x[at]);
      }
      const double r = 1 / std::sqrt(squares / double(width) + epsilon);
      expected_rstd[std::size_t(row)] = r;
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = std::size_t(row * width + i), column = std::size_t(i);
        const double n = x[at] * r, g = grad[at], w = weight[column];
        expected[at] = n * w;
        expected_x[at] = r * (g * w - n * (products * r / double(width)));
        expected_weight[column] += g * n;
      }
    }
    EXPECT_TRUE(close(y, expected, 1e-6)) << width;
    EXPECT_TRUE(close(rstd, expected_rstd, 1e-6)) << width;
    EXPECT_TRUE(close(grad_x, expected_x, 2e-6)) << width;
    EXPECT_TRUE(close(grad_weight, expected_weight, 1e-6)) << width;
  }
}

TEST(RmsNormKernel, GivesARowTheSameBitsAmongAnyOthers) {
  constexpr std::int64_t rows = 7, width = 37;
  const std::vector<float> x = noise(rows * width, 1), weight = noise(width, 3);
  std::vector<float> whole(x.size()), parts(x.size()), rstd(rows);
  cpu::rms_norm({x.data(), weight.data(), rows, width}, 1e-5f, whole.data(), rstd.data());
  for (std::int64_t row = 0; row < rows; ++row)
    cpu::rms_norm({x.data() + row * width, weight.data(), 1, width}, 1e-5f,
                  parts.data() + row * width, rstd.data());
  EXPECT_EQ(parts, whole);
}

}  // namespace
}  // namespace echelon::kernels
