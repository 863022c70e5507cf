#include "echelon/nn/product.h"

#include <limits>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "tests/nn/close.h"

namespace echelon {
namespace {

TEST(Product, MatchesTheMatrixProductForAnySizeStrideAndType) {
  struct Sizes {
    std::int64_t n, in, out;
  };
  for (const auto& [n, in, out] : {Sizes{1, 1, 1}, Sizes{21, 15, 13}, Sizes{64, 384, 1152},
                                   Sizes{1, 257, 3}, Sizes{300, 1, 5}}) {
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const bool transposed : {false, true}) {
        const at::Tensor x = at::randn({n, in}).to(type), bias = at::randn({out}).to(type);
        const at::Tensor weight =
            transposed ? at::randn({in, out}).to(type).t() : at::randn({out, in}).to(type);
        const at::Tensor expected = x.to(at::kDouble).matmul(weight.to(at::kDouble).t());
        const double tolerance = type == at::kDouble ? 1e-13 : type == at::kFloat ? 1e-5 : 0.02;
        const std::string sizes = std::to_string(n) + "x" + std::to_string(in) + " by " +
                                  std::to_string(in) + "x" + std::to_string(out) + " in " +
                                  at::toString(type) + (transposed ? ", transposed" : "");
        EXPECT_TRUE(close(product(x, weight), expected, tolerance)) << sizes;
        EXPECT_TRUE(close(product(x, weight, bias), expected.add(bias.to(at::kDouble)), tolerance))
            << sizes << ", with bias";
        EXPECT_EQ(product(x, weight).scalar_type(), type);
      }
    }
  }
}

TEST(Product, AcceptsAPartOfALargerMatrix) {
  const at::Tensor x = at::randn({9, 40}).narrow(1, 7, 11),
                   weight = at::randn({30, 40}).narrow(1, 3, 11);
  EXPECT_TRUE(
      close(product(x, weight), x.to(at::kDouble).matmul(weight.to(at::kDouble).t()), 1e-5));
}

TEST(Product, HasNoRowsIfItsInputHasNone) {
  const at::Tensor y = product(at::empty({0, 4}), at::randn({3, 4}), at::randn({3}));
  EXPECT_EQ(y.size(0), 0);
  EXPECT_EQ(y.size(1), 3);
}

struct Rows {
  std::int64_t n, in, out;
};
// Sizes around the edges of tiles (12 or 6 by 32, 16 or 8) and of blocks of 128 rows.
constexpr Rows rows_and_columns[] = {{1, 1, 1},     {2, 6, 8},      {127, 12, 32}, {128, 12, 32},
                                     {129, 13, 33}, {300, 5, 31},   {7, 200, 3},   {256, 47, 95},
                                     {513, 36, 64}, {1000, 25, 17}, {64, 384, 96}};

std::string text(const Rows& sizes) {
  return std::to_string(sizes.n) + " rows of " + std::to_string(sizes.in) + " and " +
         std::to_string(sizes.out);
}

using Gradients = void (*)(const at::Tensor&, const at::Tensor&, double, Accumulated, Accumulated);

void expect_gradients(Gradients gradients, const Rows& sizes, at::ScalarType type,
                      double tolerance) {
  const auto [n, in, out] = sizes;
  // Parts of wider matrices, so that rows are not adjacent.
  const at::Tensor x = at::randn({n, in + 3}).to(type).narrow(1, 2, in);
  const at::Tensor y = at::randn({n, out + 5}).to(type).narrow(1, 1, out);
  const at::Tensor product = x.to(at::kDouble).t().matmul(y.to(at::kDouble));
  const at::Tensor sums = y.to(at::kDouble).sum(0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double beta : {0.0, 1.0, 0.5}) {
    for (const double scale : {1.0, 0.375}) {
      // With beta 0 the old contents must not leak through.
      const at::Tensor before = beta == 0 ? at::full({in, out}, nan) : at::randn({in, out});
      const at::Tensor before_sums = beta == 0 ? at::full({out}, nan) : at::randn({out});
      const auto kept = [&](const at::Tensor& t) {
        return beta == 0 ? at::zeros_like(t, at::kDouble) : beta * t.to(type).to(at::kDouble);
      };
      const at::Tensor all = at::full({in, out + 2}, 7.0, type), into = all.narrow(1, 1, out);
      into.copy_(before);
      const at::Tensor into_sums = before_sums.to(type).clone();
      gradients(x, y, scale, {into, beta}, {into_sums, beta});
      const std::string which = text(sizes) + " in " + at::toString(type);
      EXPECT_TRUE(close(into, kept(before) + scale * product, tolerance)) << which;
      EXPECT_TRUE(close(into_sums, kept(before_sums) + sums, tolerance)) << which;
      EXPECT_TRUE(close(all.select(1, 0), at::full({in}, 7.0), 0)) << which << ": wrote before it";
      EXPECT_TRUE(close(all.select(1, out + 1), at::full({in}, 7.0), 0))
          << which << ": wrote past it";
    }
  }
}

TEST(ProductGradient, MatchesTheMatrixProductForAnySizeAndType) {
  for (const auto& sizes : rows_and_columns) {
    expect_gradients(product_gradient, sizes, at::kDouble, 1e-13);
    expect_gradients(product_gradient, sizes, at::kFloat, 1e-5);
    expect_gradients(product_gradient, sizes, at::kBFloat16, 0.02);
  }
}

TEST(OuterProducts, MatchTheMatrixProductEvenIfTheyDoNotPay) {
  for (const auto& sizes : rows_and_columns)
    expect_gradients(outer_products, sizes, at::kFloat, 1e-5);
}

TEST(OuterProducts, HaveTheSameBitsInAnyCutOfColumnsAndWithAnyNumberOfThreads) {
  const at::Tensor x = at::randn({700, 100}), y = at::randn({700, 150});
  // Scaled and accumulated: both must round the same way everywhere.
  const auto product = [](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor into = at::full({a.size(1), b.size(1)}, 0.7);
    outer_products(a, b, 1.0 / 3, {into, 1});
    return into;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor whole = product(x, y);
  at::set_num_threads(3);
  EXPECT_TRUE(close(product(x, y), whole, 0)) << "by three threads";
  at::set_num_threads(threads);
  for (const std::int64_t cut : {1, 12, 31, 50}) {
    EXPECT_TRUE(close(product(x.narrow(1, cut, 50), y), whole.narrow(0, cut, 50), 0)) << cut;
    EXPECT_TRUE(close(product(x, y.narrow(1, cut, 99)), whole.narrow(1, cut, 99), 0)) << cut;
  }
}

TEST(ProductGradient, WithoutRowsKeepsOrClearsTheOldGradient) {
  const at::Tensor weight = at::ones({4, 3}), bias = at::ones({3});
  product_gradient(at::empty({0, 4}), at::empty({0, 3}), 1, {weight, 1}, {bias, 0});
  EXPECT_TRUE(close(weight, at::ones({4, 3}), 0));
  EXPECT_TRUE(close(bias, at::zeros({3}), 0));
}

TEST(Product, NamesItsLibrary) {
  const std::string library = product_library();
  EXPECT_TRUE(library == "oneDNN" || library == "torch") << library;
}

}  // namespace
}  // namespace echelon
