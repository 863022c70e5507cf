#include "echelon/nn/product.h"

#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tests/nn/close.h"

namespace echelon {
namespace {

TEST(Product, IsThatOfTheMatricesForAnySizesStridesAndTypes) {
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

TEST(Product, TakesAPartOfALargerMatrix) {
  const at::Tensor x = at::randn({9, 40}).narrow(1, 7, 11),
                   weight = at::randn({30, 40}).narrow(1, 3, 11);
  EXPECT_TRUE(
      close(product(x, weight), x.to(at::kDouble).matmul(weight.to(at::kDouble).t()), 1e-5));
}

TEST(Product, OfNoRowsHasNoRows) {
  const at::Tensor y = product(at::empty({0, 4}), at::randn({3, 4}), at::randn({3}));
  EXPECT_EQ(y.size(0), 0);
  EXPECT_EQ(y.size(1), 3);
}

TEST(Product, SaysWhichLibraryDoesIt) {
  const std::string library = product_library();
  EXPECT_TRUE(library == "oneDNN" || library == "torch") << library;
}

}  // namespace
}  // namespace echelon
