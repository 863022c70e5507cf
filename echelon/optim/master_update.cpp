#include "echelon/optim/master_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "echelon/nn/memory.h"
#include "echelon/optim/flat_norm.h"
#include "echelon/optim/optimizer.h"

namespace echelon {

MasterUpdate::MasterUpdate(Stack& stack, const OptimOptions& options,
                           const std::optional<LossScale::Setup>& scaling, PartSums part_sums)
    : stack_(stack), part_sums_(std::move(part_sums)) {
  const auto n = stack.values().numel();
  const auto wide = stack.values().options().dtype(master_type(stack.type()));
  at::Tensor master = stack.values();
  if (master.scalar_type() != master_type(stack.type())) {
    MemoryScope scope(MemoryKind::optimizer);
    master = at::zeros({n}, wide);
  }
  const auto type = stack.sums().scalar_type();
  auto ranges = ranges_within(stack.units(), 0, n, type, grain_of(options));
  slice_ = std::make_unique<SliceUpdate>(
      std::vector<SliceUpdate::Part>{{master, std::move(ranges)}}, stack.device(), type, options,
      parameters_of(stack.units()), part_sums_.parameters, scaling);
  norm_ = at::zeros({}, wide);
  for (const auto& name : make_optimizer(options)->state_names()) kinds_.push_back(name);
}

std::vector<StateSlice> MasterUpdate::slices() const {
  std::vector<StateSlice> all;
  for (const auto& [kind, flat] : slice_->state())
    for (const auto& parameter : stack_.parameters()) {
      if (!parameter.trainable || !parameter.here) continue;
      const at::Tensor mine = flat.narrow(0, parameter.begin, parameter.numel());
      all.push_back(
          {kind, &parameter, 0, parameter.numel(), [mine](bool, const auto& use) { use(mine); }});
    }
  return all;
}

void MasterUpdate::load(const ValueSource& source) {
  at::NoGradGuard no_grad;
  stack_.load(source);
  const at::Tensor& master = slice_->master();
  if (master.is_same(stack_.values())) return;
  for (const auto& unit : stack_.units()) {
    if (!unit.trainable) continue;
    for (const auto& segment : unit.segments) {
      source(*stack_.find(segment.name),
             master.narrow(0, unit.begin + segment.offset, segment.numel).view(segment.shape));
    }
  }
}

void MasterUpdate::apply(const at::Tensor& loss) {
  at::NoGradGuard no_grad;
  at::Tensor norm = counted_norm(stack_.sums(), stack_.units(), 0);
  if (part_sums_.all) {
    const at::Tensor square = norm.to(at::kDouble).square();
    part_sums_.all(square);
    norm = square.sqrt();
  }
  norm_.copy_(slice_->without_scale(norm));
  slice_->apply({stack_.sums()}, norm_, loss);
  publish();
}

void MasterUpdate::publish() {
  at::NoGradGuard no_grad;
  if (!slice_->master().is_same(stack_.values()))
    at::Tensor(stack_.values()).copy_(slice_->master());
}

}  // namespace echelon
