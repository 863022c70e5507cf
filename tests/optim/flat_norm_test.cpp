#include "echelon/optim/flat_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace echelon {
namespace {

// Plain fp32 sums lose 1e-3 at this length.
TEST(FlatNorm, MatchesDoublePrecisionAtAnyLength) {
  at::manual_seed(1);
  for (const std::int64_t numel : {1, 31, 33, 4097, 70000, 20'000'003})
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const at::Tensor flat = at::randn({numel}, at::kFloat).to(type);
      const double expected = at::linalg_vector_norm(flat.to(at::kDouble)).item<double>();
      const at::Tensor seen = flat_norm(flat);
      EXPECT_EQ(seen.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
      EXPECT_NEAR(seen.item<double>() / expected, 1, 1e-6) << numel << " of " << type;
    }
}

TEST(FlatNorm, HasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor flat = at::randn({1'000'001});
  at::set_num_threads(1);
  const float one = flat_norm(flat).item<float>();
  at::set_num_threads(2);
  EXPECT_EQ(flat_norm(flat).item<float>(), one);
  at::set_num_threads(1);
}

TEST(FlatNorm, IsNotFiniteIfAnElementIsNotFinite) {
  at::Tensor flat = at::full({5000}, 2.0F);
  flat[4500] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(flat_norm(flat).item<float>()));
  flat[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(flat_norm(flat).item<float>()));
  EXPECT_EQ(flat_norm(at::full({0}, 1.0F)).item<float>(), 0);
}

}  // namespace
}  // namespace echelon
