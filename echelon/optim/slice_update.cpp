#include "echelon/optim/slice_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
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

Grain grain_of(const OptimOptions& options) {
  return make_optimizer(options)->looks_at_parameters() ? Grain::parameter : Grain::decay_group;
}

std::vector<UpdateRange> ranges_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                       std::int64_t end, at::ScalarType type, Grain grain) {
  std::vector<UpdateRange> within;
  const auto longest =
      is_narrow(type) ? longest_wide_slice : std::numeric_limits<std::int64_t>::max();
  for (const auto& range : update_ranges(units, grain, longest)) {
    const auto first = std::max(range.begin, begin),
               last = std::min(range.begin + range.numel, end);
    if (first < last) within.push_back({first - begin, last - first, range.decay, range.parameter});
  }
  return within;
}

int parameters_of(const std::vector<FlatUnit>& units) {
  std::size_t count = 0;
  for (const auto& unit : units)
    if (unit.trainable) count += unit.segments.size();
  return static_cast<int>(count);
}

SliceUpdate::SliceUpdate(std::vector<Part> parts, at::ScalarType type, const OptimOptions& options,
                         int parameters, std::function<void(at::Tensor)> sum_over_owners)
    : options_(options),
      optimizer_(make_optimizer(options)),
      narrow_(is_narrow(type)),
      single_(type != at::kDouble),
      parts_(std::move(parts)),
      sum_over_owners_(std::move(sum_over_owners)) {
  const auto wide = parts_.at(0).master.options();
  std::int64_t all = 0, longest = 0;
  for (const auto& part : parts_) {
    all += part.master.numel();
    for (const auto& range : part.ranges) longest = std::max(longest, range.numel);
  }
  {
    MemoryScope scope(MemoryKind::optimizer);
    for (std::size_t i = 0; i < optimizer_->state_names().size(); ++i)
      moments_.push_back(at::zeros({all}, wide));
  }
  if (narrow_) {
    MemoryScope scope(MemoryKind::workspace);
    wide_grad_ = at::empty({longest}, wide);
  }
  const auto scalar = wide.dtype(at::kFloat);
  // A CPU's kernels take the rate in double precision, which fp64 models need; a GPU's take a
  // float.
  scalars_.rate = at::zeros({}, !single_ && wide.device().is_cpu() ? wide : scalar);
  scalars_.updates = at::zeros({}, scalar);
  scalars_.skip = at::zeros({}, scalar);
  if (optimizer_->looks_at_parameters())
    scalars_.squares = at::zeros({parameters, 2}, wide.dtype(at::kDouble));
}

at::Tensor SliceUpdate::norm_of(const std::vector<at::Tensor>& grads) const {
  const auto type = parts_.front().master.scalar_type();
  std::vector<at::Tensor> norms;
  for (const auto& grad : grads) norms.push_back(at::linalg_vector_norm(grad, 2, {}, false, type));
  return norms.size() == 1 ? norms[0]
                           : at::linalg_vector_norm(at::stack(norms), 2, {}, false, type);
}

void SliceUpdate::apply(const std::vector<at::Tensor>& grads, const at::Tensor& norm,
                        const at::Tensor& loss) {
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
      for (at::Tensor grad : grads)
        grad.div_(scale);  // the fused kernels' scale has only single precision
    }
  }

  if (optimizer_->looks_at_parameters()) {
    scalars_.squares.zero_();
    each_slice(grads, [&](const Slice& slice) {
      optimizer_->measure(slice, scalars_, scalars_.squares[slice.parameter]);
    });
    if (sum_over_owners_) sum_over_owners_(scalars_.squares);
  }
  std::vector<Slice> slices;
  each_slice(grads, [&](const Slice& slice) {
    narrow_ ? optimizer_->update({slice}, scalars_) : slices.push_back(slice);
  });
  if (!slices.empty()) optimizer_->update(slices, scalars_);
}

template <class Fn>
void SliceUpdate::each_slice(const std::vector<at::Tensor>& grads, const Fn& fn) {
  std::int64_t first = 0;  // of the part, in the moments
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [master, ranges] = parts_[i];
    for (const auto& range : ranges) {
      at::Tensor grad = grads[i].narrow(0, range.begin, range.numel);
      if (narrow_) grad = wide_grad_.narrow(0, 0, range.numel).copy_(grad);
      Slice slice{
          master.narrow(0, range.begin, range.numel), grad, {}, range.decay, range.parameter};
      for (const auto& moment : moments_)
        slice.state.push_back(moment.narrow(0, first + range.begin, range.numel));
      fn(slice);
    }
    first += master.numel();
  }
}

std::vector<SliceUpdate::PartedState> SliceUpdate::parted_state() const {
  std::vector<PartedState> all = {{"master", {}}};
  for (const auto& part : parts_) all[0].parts.push_back(part.master);
  const auto names = optimizer_->state_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    all.push_back({names[i], {}});
    std::int64_t first = 0;
    for (const auto& part : parts_) {
      all.back().parts.push_back(moments_[i].narrow(0, first, part.master.numel()));
      first += part.master.numel();
    }
  }
  return all;
}

std::vector<SliceUpdate::State> SliceUpdate::state() const {
  std::vector<State> all;
  for (const auto& one : parted_state()) all.push_back({one.name, one.parts.at(0)});
  return all;
}

double SliceUpdate::updates() const { return scalars_.updates.item<double>(); }

void SliceUpdate::restart(double updates) {
  scalars_.updates.fill_(updates);
  scalars_.skip.zero_();
}

}  // namespace echelon
