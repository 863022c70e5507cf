#include "echelon/optim/master_update.h"

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

bool is_narrow(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

}  // namespace

MasterUpdate::MasterUpdate(Stack& stack, const OptimOptions& options)
    : stack_(stack), options_(options), optimizer_(make_optimizer(options)) {
  const bool narrow = is_narrow(stack.type());
  const auto wide = stack.values().options().dtype(narrow ? at::kFloat : stack.type());
  const auto n = stack.values().numel();
  ranges_ = decay_ranges(stack.units(),
                         narrow ? longest_wide_slice : std::numeric_limits<std::int64_t>::max());
  {
    MemoryScope scope(MemoryKind::optimizer);
    master_ = narrow ? at::zeros({n}, wide) : stack.values();
    for (std::size_t i = 0; i < optimizer_->state_names().size(); ++i)
      moments_.push_back(at::zeros({n}, wide));
  }
  if (narrow) {
    MemoryScope scope(MemoryKind::workspace);
    std::int64_t longest = 0;
    for (const auto& range : ranges_) longest = std::max(longest, range.numel);
    wide_grad_ = at::empty({longest}, wide);
  }
  const auto scalar = wide.dtype(at::kFloat);
  // A CPU's kernels take the rate in double precision, which fp64 models need; a GPU's take a
  // float.
  scalars_.rate =
      at::zeros({}, stack.type() == at::kDouble && stack.device().is_cpu() ? wide : scalar);
  scalars_.updates = at::zeros({}, scalar);
  scalars_.skip = at::zeros({}, scalar);
  norm_ = at::zeros({}, wide);
}

void MasterUpdate::load(const ValueSource& source) {
  at::NoGradGuard no_grad;
  stack_.load(source);
  if (master_.is_same(stack_.values())) return;
  for (const auto& unit : stack_.units()) {
    if (!unit.trainable) continue;
    for (const auto& segment : unit.segments) {
      source(*stack_.find(segment.name),
             master_.narrow(0, unit.begin + segment.offset, segment.numel).view(segment.shape));
    }
  }
}

void MasterUpdate::apply(const at::Tensor& loss) {
  at::NoGradGuard no_grad;
  at::Tensor grads = stack_.grads();
  const bool narrow = is_narrow(stack_.type());
  norm_.copy_(at::linalg_vector_norm(grads, 2, {}, false, narrow ? at::kFloat : stack_.type()));
  const at::Tensor finite = (norm_ + loss).isfinite();
  scalars_.skip.copy_(scalars_.skip.maximum(finite.logical_not()));
  scalars_.updates.add_(1 - scalars_.skip);

  if (options_.clip > 0) {
    // As torch.nn.utils.clip_grad_norm_: the factor is min(1, clip / (norm + 1e-6)).
    const at::Tensor scale = ((norm_ + 1e-6) / options_.clip).clamp_min(1);
    if (stack_.type() == at::kDouble) {
      grads.div_(scale);  // the fused kernels' scale has only single precision
    } else {
      scalars_.grad_scale = scale;
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
    if (!narrow) {
      slices.push_back(slice_of(range, grad));
      continue;
    }
    const at::Tensor wide = wide_grad_.narrow(0, 0, range.numel);
    wide.copy_(grad);
    optimizer_->update({slice_of(range, wide)}, scalars_);
  }
  if (narrow) {
    publish();
  } else {
    optimizer_->update(slices, scalars_);
  }
}

std::vector<MasterUpdate::State> MasterUpdate::state() const {
  std::vector<State> all = {{"master", master_}};
  const auto names = optimizer_->state_names();
  for (std::size_t i = 0; i < names.size(); ++i) all.push_back({names[i], moments_[i]});
  return all;
}

double MasterUpdate::updates() const { return scalars_.updates.item<double>(); }
void MasterUpdate::restart(double updates) {
  scalars_.updates.fill_(updates);
  scalars_.skip.zero_();
}

void MasterUpdate::publish() {
  at::NoGradGuard no_grad;
  if (!master_.is_same(stack_.values())) at::Tensor(stack_.values()).copy_(master_);
}

}  // namespace echelon
