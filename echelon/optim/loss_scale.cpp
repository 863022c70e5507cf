#include "echelon/optim/loss_scale.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace echelon {
namespace {

constexpr double smallest = 1;

}  // namespace

LossScale::LossScale(const Setup& setup, at::Device device) : growth_(setup.growth) {
  const auto options = at::TensorOptions(device);
  scale_ = at::full({}, setup.first, options.dtype(at::kFloat));
  good_ = at::zeros({}, options.dtype(at::kLong));
}

at::Tensor LossScale::advance(const at::Tensor& overflow, const at::Tensor& hold) {
  const at::Tensor lower = scale_ * 0.5, higher = scale_ * 2, good = good_ + 1;
  const at::Tensor grows = good >= growth_;
  const at::Tensor raised = at::where(grows.logical_and(higher.isfinite()), higher, scale_);
  const at::Tensor exhausted = overflow.logical_and(lower < smallest);
  const at::Tensor keep = hold.logical_or(exhausted);
  scale_.copy_(at::where(keep, scale_, at::where(overflow, lower, raised)));
  good_.copy_(at::where(keep, good_, good.masked_fill(overflow.logical_or(grows), 0)));
  return exhausted;
}

LossScale::State LossScale::state() const {
  return {scale_.item<double>(), good_.item<std::int64_t>()};
}

void LossScale::restore(const State& state) {
  scale_.fill_(state.scale);
  good_.fill_(state.good_steps);
}

}  // namespace echelon
