// Sums of outer products on raw memory against plain loops in doubles, with strides.
#include "echelon/kernels/cpu/outer_products.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/numbers.h"

namespace echelon::kernels {
namespace {

using Size = std::int64_t;

struct Sizes {
  Size rows, x_columns, y_columns;
};

struct Numbers {
  explicit Numbers(const Sizes& s)
      : sizes(s),
        x(noise(s.rows * (s.x_columns + 3), 1)),
        y(noise(s.rows * (s.y_columns + 5), 2)),
        product(noise(s.x_columns * (s.y_columns + 2), 3)),
        sums(noise(s.y_columns, 4)) {}

  OuterProducts<float> arguments(bool add) {
    return {.rows = sizes.rows,
            .x_columns = sizes.x_columns,
            .y_columns = sizes.y_columns,
            .x = {x.data(), sizes.x_columns + 3},
            .y = {y.data(), sizes.y_columns + 5},
            .scale = 0.5f,
            .product = {product.data(), sizes.y_columns + 2},
            .add = add,
            .sums = sums.data(),
            .add_sums = add};
  }

  Sizes sizes;
  std::vector<float> x, y, product, sums;
};

TEST(OuterProductsKernel, AgreesWithThePlainLoopAtOddSizes) {
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{3, 12, 32}, Sizes{130, 25, 33},
                             Sizes{257, 11, 70}, Sizes{128, 48, 64}, Sizes{5, 100, 1}})
    for (const bool add : {false, true}) {
      const auto [rows, x_columns, y_columns] = sizes;
      Numbers n(sizes);
      std::vector<double> product(n.product.begin(), n.product.end()),
          sums(n.sums.begin(), n.sums.end());
      for (Size j = 0; j < y_columns; ++j) {
        double& sum = sums[static_cast<std::size_t>(j)];
        if (!add) sum = 0;
        for (Size r = 0; r < rows; ++r)
          sum += static_cast<double>(n.y[static_cast<std::size_t>(r * (y_columns + 5) + j)]);
        for (Size i = 0; i < x_columns; ++i) {
          double& at = product[static_cast<std::size_t>(i * (y_columns + 2) + j)];
          if (!add) at = 0;
          for (Size r = 0; r < rows; ++r)
            at += 0.5 *
                  static_cast<double>(n.x[static_cast<std::size_t>(r * (x_columns + 3) + i)]) *
                  static_cast<double>(n.y[static_cast<std::size_t>(r * (y_columns + 5) + j)]);
        }
      }
      cpu::outer_products(n.arguments(add), 0, cpu::outer_products_panels(x_columns));
      const std::string text = std::to_string(rows) + " rows, " + std::to_string(x_columns) +
                               " by " + std::to_string(y_columns) + (add ? ", added" : "");
      EXPECT_TRUE(close(n.product, product, 2e-6)) << text;
      EXPECT_TRUE(close(n.sums, sums, 2e-6)) << text;
    }
}

TEST(OuterProductsKernel, SkipsSumsThatAreNotRequested) {
  Numbers with({40, 30, 20}), without({40, 30, 20});
  const std::vector<float> before = without.sums;
  OuterProducts<float> arguments = without.arguments(false);
  arguments.sums = nullptr;
  cpu::outer_products(with.arguments(false), 0, 3);
  cpu::outer_products(arguments, 0, 3);
  EXPECT_EQ(without.product, with.product);
  EXPECT_EQ(without.sums, before);
}

TEST(OuterProductsKernel, HasTheSameBitsInAnyRanges) {
  const Sizes sizes{150, 100, 45};
  Numbers whole(sizes), parts(sizes);
  const Size panels = cpu::outer_products_panels(sizes.x_columns);
  cpu::outer_products(whole.arguments(true), 0, panels);
  for (Size panel = 0; panel < panels; panel += 2)
    cpu::outer_products(parts.arguments(true), panel, std::min(panel + 2, panels));
  EXPECT_EQ(parts.product, whole.product);
  EXPECT_EQ(parts.sums, whole.sums);
}

}  // namespace
}  // namespace echelon::kernels
