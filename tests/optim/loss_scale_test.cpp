#include "echelon/optim/loss_scale.h"

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <optional>

#include "echelon/base/random.h"

namespace echelon {
namespace {

at::Tensor boolean(bool value) { return at::full({}, value, at::kBool); }

bool advance(LossScale& scale, bool overflow, bool hold = false) {
  return scale.advance(boolean(overflow), boolean(hold)).item<bool>();
}

// This operator implements the rule of torch.amp.GradScaler.
TEST(LossScale, FollowsTorchsGradScaler) {
  for (const std::int64_t growth : {1, 3, 8}) {
    LossScale scale({.first = 1024, .growth = growth}, at::kCPU);
    at::Tensor expected = at::full({}, 1024, at::kFloat), good = at::zeros({}, at::kInt);
    int changes = 0;
    for (std::uint64_t i = 0; i < 400; ++i) {
      double draw = 0;
      fill_normal(7, i, std::span(&draw, 1), 0, 1);
      // Overflows are rare enough that the scale does not fall to 1, and frequent enough that it
      // both grows and shrinks.
      const bool overflow = scale.state().scale > 8 && draw > (growth == 8 ? 1.3 : 0.6);
      const double before = scale.state().scale;
      ASSERT_FALSE(advance(scale, overflow));
      at::_amp_update_scale_(expected, good, at::full({}, overflow ? 1.0 : 0.0, at::kFloat), 2, 0.5,
                             growth);
      ASSERT_EQ(scale.state().scale, expected.item<double>()) << "step " << i;
      ASSERT_EQ(scale.state().good_steps, good.item<std::int64_t>()) << "step " << i;
      changes += scale.state().scale != before;
    }
    EXPECT_GT(changes, 20) << growth;
  }
}

TEST(LossScale, IsExhaustedByAnOverflowAtOne) {
  LossScale scale({.first = 5, .growth = 100}, at::kCPU);
  EXPECT_FALSE(advance(scale, true));
  EXPECT_EQ(scale.state().scale, 2.5);
  EXPECT_FALSE(advance(scale, true));
  EXPECT_EQ(scale.state().scale, 1.25);
  EXPECT_TRUE(advance(scale, true));
  EXPECT_EQ(scale.state().scale, 1.25) << "it stays as it is";
  EXPECT_FALSE(advance(scale, false)) << "a good step may follow";
}

TEST(LossScale, DoesNotChangeOnHold) {
  LossScale scale({.first = 64, .growth = 2}, at::kCPU);
  advance(scale, false);
  for (const bool overflow : {true, false, false, true}) {
    EXPECT_FALSE(advance(scale, overflow, /*hold=*/true));
    EXPECT_EQ(scale.state().scale, 64);
    EXPECT_EQ(scale.state().good_steps, 1);
  }
}

TEST(LossScale, StopsDoublingBeforeItIsInfinite) {
  LossScale scale({.first = 0x1p126, .growth = 1}, at::kCPU);
  for (int i = 0; i < 5; ++i) advance(scale, false);
  EXPECT_EQ(scale.state().scale, 0x1p127);
}

TEST(LossScale, ContinuesFromItsState) {
  LossScale one({.first = 4096, .growth = 3}, at::kCPU), other({.first = 2, .growth = 3}, at::kCPU);
  for (const bool overflow : {true, false, false}) advance(one, overflow);
  other.restore(one.state());
  for (int i = 0; i < 9; ++i) {
    advance(one, i == 4);
    advance(other, i == 4);
    EXPECT_EQ(one.state().scale, other.state().scale) << i;
    EXPECT_EQ(one.state().good_steps, other.state().good_steps) << i;
  }
}

}  // namespace
}  // namespace echelon
