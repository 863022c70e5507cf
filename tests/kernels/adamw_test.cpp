// AdamW on raw memory against the formula of the paper, in doubles.
#include "echelon/kernels/cpu/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

constexpr double rate = 0.01, decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-6, scale = 4;

AdamwFactors factors(int t) {
  return {.keep = 1 - rate * decay,
          .beta1 = beta1,
          .beta2 = beta2,
          .step = rate / (1 - std::pow(beta1, t)),
          .root = std::sqrt(1 - std::pow(beta2, t)),
          .epsilon = epsilon,
          .scale = scale};
}

template <class T, class Grad>
struct State {
  explicit State(std::int64_t count) : value(noise<T>(count, 1)), mean(value.size()) {
    square = mean;
  }

  void step(const std::vector<Grad>& grad, int t, std::int64_t begin, std::int64_t end) {
    cpu::adamw(value.data() + begin, grad.data() + begin, mean.data() + begin,
               square.data() + begin, end - begin, factors(t));
  }

  std::vector<T> value, mean, square;
};

double widen(Bf16 x) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16));
}
double widen(double x) { return x; }

template <class Grad>
std::vector<Grad> gradient(std::int64_t count, int t) {
  const auto floats = noise<float>(count, static_cast<std::uint32_t>(t + 10));
  std::vector<Grad> out;
  for (const float x : floats) {
    if constexpr (std::is_same_v<Grad, Bf16>)
      out.push_back({static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)});
    else
      out.push_back(static_cast<Grad>(x));
  }
  return out;
}

template <class T, class Grad>
void expect_formula(double tolerance) {
  for (const std::int64_t count : {0, 1, 7, 16, 33, 1001}) {
    State<T, Grad> actual(count);
    State<double, double> expected(count);
    expected.value.assign(actual.value.begin(), actual.value.end());
    for (int t = 1; t <= 3; ++t) {
      const auto grad = gradient<Grad>(count, t);
      actual.step(grad, t, 0, count);
      for (std::size_t i = 0; i < grad.size(); ++i) {
        const double g = widen(grad[i]) / scale;
        double &w = expected.value[i], &m = expected.mean[i], &v = expected.square[i];
        w -= rate * decay * w;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        w -= rate / (1 - std::pow(beta1, t)) * m /
             (std::sqrt(v / (1 - std::pow(beta2, t))) + epsilon);
      }
    }
    EXPECT_TRUE(close(actual.value, expected.value, tolerance)) << count;
    EXPECT_TRUE(close(actual.mean, expected.mean, tolerance)) << count;
    EXPECT_TRUE(close(actual.square, expected.square, tolerance)) << count;
  }
}

TEST(AdamwKernel, IsItsFormulaInFloats) { expect_formula<float, float>(2e-7); }
TEST(AdamwKernel, IsItsFormulaInDoubles) { expect_formula<double, double>(1e-15); }
TEST(AdamwKernel, IsItsFormulaOfBf16Gradients) { expect_formula<float, Bf16>(2e-7); }

TEST(AdamwKernel, HasTheSameBitsInAnyRanges) {
  constexpr std::int64_t count = 501;
  State<float, float> whole(count), parts(count);
  for (int t = 1; t <= 2; ++t) {
    const auto grad = gradient<float>(count, t);
    whole.step(grad, t, 0, count);
    for (std::int64_t begin = 0; begin < count; begin += 100)
      parts.step(grad, t, begin, std::min(begin + 100, count));
  }
  EXPECT_EQ(parts.value, whole.value);
  EXPECT_EQ(parts.mean, whole.mean);
  EXPECT_EQ(parts.square, whole.square);
}

}  // namespace
}  // namespace echelon::kernels
