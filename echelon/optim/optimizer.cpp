#include "echelon/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "echelon/base/error.h"
#include "echelon/optim/flat_norm.h"

namespace echelon {

std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options) {
  constexpr std::array<std::unique_ptr<Optimizer> (*)(const OptimOptions&),
                       all_names<OptimizerKind>.size()>
      makers = {make_adamw, make_sgd, make_lars, make_lamb};
  return makers.at(std::size_t(options.name))(options);
}

at::Tensor usable_gradient(const Slice& slice, const StepScalars& scalars) {
  at::Tensor grad = slice.grad;
  if (scalars.grad_scale) grad.div_(*scalars.grad_scale);
  return grad.masked_fill_(scalars.skip.to(at::kBool), 0);
}

at::Tensor square_of(const at::Tensor& x) {
  return flat_norm(x.reshape({-1})).to(at::kDouble).square();
}

at::Tensor norm_ratio(const at::Tensor& above, const at::Tensor& below) {
  const at::Tensor ratio = (above / below).sqrt();
  return at::where((above > 0).logical_and(below > 0), ratio, at::ones_like(ratio));
}

SliceLists::SliceLists(const std::vector<Slice>& slices, bool decay, std::size_t states)
    : state(states) {
  for (const auto& slice : slices) {
    if (slice.decay != decay) continue;
    values.push_back(slice.value);
    grads.push_back(slice.grad);
    for (std::size_t i = 0; i < states; ++i) state[i].push_back(slice.state[i]);
  }
}

}  // namespace echelon
