#include "echelon/optim/slice_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
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
  return make_optimizer(options)->looks_at_parameters() ? Grain::parameter : Grain::group;
}

std::vector<UpdateRange> ranges_within(const std::vector<FlatUnit>& units, std::int64_t begin,
                                       std::int64_t end, at::ScalarType type, Grain grain) {
  std::vector<UpdateRange> within;
  const auto longest =
      is_narrow(type) ? longest_wide_slice : std::numeric_limits<std::int64_t>::max();
  for (const auto& range : update_ranges(units, grain, longest)) {
    const auto first = std::max(range.begin, begin),
               last = std::min(range.begin + range.numel, end);
    if (first < last)
      within.push_back({first - begin, last - first, range.update, range.parameter});
  }
  return within;
}

int parameters_of(const std::vector<FlatUnit>& units) {
  std::size_t count = 0;
  for (const auto& unit : units)
    if (unit.trainable) count += unit.segments.size();
  return static_cast<int>(count);
}

SliceUpdate::SliceUpdate(std::vector<Part> parts, at::Device device, at::ScalarType type,
                         const OptimOptions& options, int parameters,
                         std::function<void(at::Tensor)> sum_over_owners,
                         const std::optional<LossScale::Setup>& scaling)
    : options_(options),
      optimizer_(make_optimizer(options)),
      gradients_(type),
      single_(type != at::kDouble),
      parts_(std::move(parts)),
      sum_over_owners_(std::move(sum_over_owners)) {
  const auto wide = at::TensorOptions(device).dtype(master_type(type));
  std::int64_t longest = 0;
  for (const auto& part : parts_)
    for (const auto& range : part.ranges) longest = std::max(longest, range.numel);
  wide_ = wide;
  prepare(longest, parameters, wide, scaling);
}

const std::vector<at::Tensor>& SliceUpdate::moments() const {
  if (!moments_.empty()) return moments_;
  MemoryScope scope(MemoryKind::optimizer);
  std::int64_t all = 0;
  for (const auto& part : parts_) all += part.master.numel();
  for (std::size_t i = 0; i < optimizer_->state_names().size(); ++i)
    moments_.push_back(at::zeros({all}, wide_));
  return moments_;
}

SliceUpdate::SliceUpdate(std::vector<std::vector<UpdateRange>> ranges, std::int64_t longest_run,
                         Walk walk, at::ScalarType type, const OptimOptions& options,
                         int parameters, std::function<void(at::Tensor)> sum_over_owners,
                         const std::optional<LossScale::Setup>& scaling)
    : options_(options),
      optimizer_(make_optimizer(options)),
      gradients_(type),
      single_(type != at::kDouble),
      ranges_(std::move(ranges)),
      walk_(std::move(walk)),
      sum_over_owners_(std::move(sum_over_owners)) {
  prepare(longest_run, parameters, at::TensorOptions(at::kCPU).dtype(master_type(type)), scaling);
}

void SliceUpdate::prepare(std::int64_t longest, int parameters, at::TensorOptions wide,
                          const std::optional<LossScale::Setup>& scaling) {
  // A walk may visit the same gradient twice, so the gradient must not change in between.
  copies_ = (is_narrow(gradients_) && !optimizer_->takes(gradients_, wide.device())) ||
            (walk_ && (optimizer_->looks_at_parameters() || !single_));
  if (copies_) {
    MemoryScope scope(MemoryKind::workspace);
    wide_grad_ = at::empty({longest}, wide);
  }
  const auto scalar = wide.dtype(at::kFloat);
  // CPU kernels take the rate in double precision, which fp64 models need. GPU kernels take a
  // float.
  scalars_.rate = at::zeros({}, !single_ && wide.device().is_cpu() ? wide : scalar);
  scalars_.updates = at::zeros({}, scalar);
  scalars_.skip = at::zeros({}, scalar);
  halted_ = scaling ? at::zeros({}, scalar) : scalars_.skip;
  if (scaling) loss_scale_.emplace(*scaling, wide.device());
  if (optimizer_->looks_at_parameters())
    scalars_.squares = at::zeros({parameters, 2}, wide.dtype(at::kDouble));
}

at::Tensor SliceUpdate::without_scale(const at::Tensor& norm) const {
  return loss_scale_ ? norm / loss_scale_->scale() : norm;
}

void SliceUpdate::apply(const std::vector<at::Tensor>& grads, const at::Tensor& norm,
                        const at::Tensor& loss) {
  at::NoGradGuard no_grad;
  // As torch.nn.utils.clip_grad_norm_: the factor is min(1, clip / (norm + 1e-6)).
  at::Tensor scale;
  if (options_.clip > 0) scale = ((norm + 1e-6) / options_.clip).clamp_min(1);
  if (loss_scale_) {
    const at::Tensor carried = loss_scale_->scale();
    scale = scale.defined() ? scale * carried : carried.clone();
    const at::Tensor overflow = norm.isfinite().logical_not();
    const at::Tensor stop = loss.isfinite().logical_not().logical_or(halted_);
    const at::Tensor exhausted = loss_scale_->advance(overflow, stop);
    halted_.copy_(stop.logical_or(exhausted));
    scalars_.skip.copy_(stop.logical_or(overflow));
  } else {
    const at::Tensor finite = (norm + loss).isfinite();
    scalars_.skip.copy_(scalars_.skip.maximum(finite.logical_not()));
  }
  scalars_.updates.add_(1 - scalars_.skip);

  if (scale.defined()) {
    if (single_) {
      scalars_.grad_scale = scale;
    } else if (walk_) {
      scale_ = scale;
    } else {
      for (at::Tensor grad : grads)
        grad.div_(scale);  // the fused kernels' scale has only single precision
    }
  }

  if (optimizer_->looks_at_parameters()) {
    scalars_.squares.zero_();
    each_slice(grads, /*values_change=*/false, [&](const Slice& slice) {
      optimizer_->measure(slice, scalars_, scalars_.squares[slice.parameter]);
    });
    if (sum_over_owners_) sum_over_owners_(scalars_.squares);
  }
  std::vector<Slice> slices;
  each_slice(grads, /*values_change=*/true, [&](const Slice& slice) {
    copies_ || walk_ ? optimizer_->update({slice}, scalars_) : slices.push_back(slice);
  });
  if (!slices.empty()) optimizer_->update(slices, scalars_);
}

template <class Fn>
void SliceUpdate::each_slice(const std::vector<at::Tensor>& grads, bool values_change,
                             const Fn& fn) {
  if (walk_)
    return walk_(values_change, [&](const Run& run) { each_slice_of(run, ranges_[run.part], fn); });
  std::int64_t first = 0;  // offset of the part within the moments
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [master, ranges] = parts_[i];
    Run run{i, 0, master, grads[i], {}};
    for (const auto& moment : moments())
      run.state.push_back(moment.narrow(0, first, master.numel()));
    each_slice_of(run, ranges, fn);
    first += master.numel();
  }
}

template <class Fn>
void SliceUpdate::each_slice_of(const Run& run, const std::vector<UpdateRange>& ranges,
                                const Fn& fn) {
  const auto end = run.begin + run.master.numel();
  for (const auto& range : ranges) {
    const auto from = std::max(range.begin, run.begin),
               to = std::min(range.begin + range.numel, end);
    if (from >= to) continue;
    const auto at = from - run.begin, numel = to - from;
    at::Tensor grad = run.grad.narrow(0, at, numel);
    if (copies_) grad = wide_grad_.narrow(0, 0, numel).copy_(grad);
    if (scale_) grad.div_(*scale_);
    Slice slice{run.master.narrow(0, at, numel),       grad,           {}, range.update.rate,
                range.update.decay_of(options_.decay), range.parameter};
    for (const auto& state : run.state) slice.state.push_back(state.narrow(0, at, numel));
    fn(slice);
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
      all.back().parts.push_back(moments()[i].narrow(0, first, part.master.numel()));
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
  halted_.zero_();
}

}  // namespace echelon
