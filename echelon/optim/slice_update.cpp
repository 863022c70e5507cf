#include "echelon/optim/slice_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "echelon/nn/memory.h"

namespace echelon {
namespace {

constexpr std::int64_t longest_wide_slice = std::int64_t{16} << 20;  // elements widened at a time

bool is_narrow(at::ScalarType type) { return master_type(type) != type; }

}  // namespace

at::ScalarType master_type(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf ? at::kFloat : type;
}

std::vector<DecayRange> ranges_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                      std::int64_t end, at::ScalarType type) {
  std::vector<DecayRange> within;
  for (const auto& range :
       decay_ranges(units, is_narrow(type) ? longest_wide_slice
                                           : std::numeric_limits<std::int64_t>::max())) {
    const auto first = std::max(range.begin, begin),
               last = std::min(range.begin + range.numel, end);
    if (first < last) within.push_back({first - begin, last - first, range.decay});
  }
  return within;
}

SliceUpdate::SliceUpdate(at::Tensor master, std::vector<DecayRange> ranges, at::ScalarType type,
                         const OptimOptions& options)
    : options_(options),
      optimizer_(make_optimizer(options)),
      narrow_(is_narrow(type)),
      single_(type != at::kDouble),
      master_(std::move(master)),
      ranges_(std::move(ranges)) {
  const auto wide = master_.options();
  {
    MemoryScope scope(MemoryKind::optimizer);
    for (std::size_t i = 0; i < optimizer_->state_names().size(); ++i)
      moments_.push_back(at::zeros({master_.numel()}, wide));
  }
  if (narrow_) {
    MemoryScope scope(MemoryKind::workspace);
    std::int64_t longest = 0;
    for (const auto& range : ranges_) longest = std::max(longest, range.numel);
    wide_grad_ = at::empty({longest}, wide);
  }
  const auto scalar = wide.dtype(at::kFloat);
  // A CPU's kernels take the rate in double precision, which fp64 models need; a GPU's take a
  // float.
  scalars_.rate = at::zeros({}, !single_ && master_.device().is_cpu() ? wide : scalar);
  scalars_.updates = at::zeros({}, scalar);
  scalars_.skip = at::zeros({}, scalar);
}

at::Tensor SliceUpdate::norm_of(const at::Tensor& grads) const {
  return at::linalg_vector_norm(grads, 2, {}, false, master_.scalar_type());
}

void SliceUpdate::apply(at::Tensor grads, const at::Tensor& norm, const at::Tensor& loss) {
  at::NoGradGuard no_grad;
  const at::Tensor finite = (norm + loss).isfinite();
  scalars_.skip.copy_(scalars_.skip.maximum(finite.logical_not()));
  scalars_.updates.add_(1 - scalars_.skip);

  if (options_.clip > 0) {
    // As torch.nn.utils.clip_grad_norm_: the factor is min(1, clip / (norm + 1e-6)).
    const at::Tensor scale = ((norm + 1e-6) / options_.clip).clamp_min(1);
    if (single_) {
      scalars_.grad_scale = scale;
    } else {
      grads.div_(scale);  // the fused kernels' scale has only single precision
    }
  }

  const auto slice_of = [&](const DecayRange& range, const at::Tensor& grad) {
    Slice slice{master_.narrow(0, range.begin, range.numel), grad, {}, range.decay};
    for (const auto& moment : moments_)
      slice.state.push_back(moment.narrow(0, range.begin, range.numel));
    return slice;
  };
  std::vector<Slice> slices;
  for (const auto& range : ranges_) {
    const at::Tensor grad = grads.narrow(0, range.begin, range.numel);
    if (!narrow_) {
      slices.push_back(slice_of(range, grad));
      continue;
    }
    const at::Tensor wide = wide_grad_.narrow(0, 0, range.numel);
    wide.copy_(grad);
    optimizer_->update({slice_of(range, wide)}, scalars_);
  }
  if (!narrow_) optimizer_->update(slices, scalars_);
}

std::vector<SliceUpdate::State> SliceUpdate::state() const {
  std::vector<State> all = {{"master", master_}};
  const auto names = optimizer_->state_names();
  for (std::size_t i = 0; i < names.size(); ++i) all.push_back({names[i], moments_[i]});
  return all;
}

double SliceUpdate::updates() const { return scalars_.updates.item<double>(); }

void SliceUpdate::restart(double updates) {
  scalars_.updates.fill_(updates);
  scalars_.skip.zero_();
}

}  // namespace echelon
