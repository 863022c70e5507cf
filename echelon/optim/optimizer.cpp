#include "echelon/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/optim/flat_norm.h"

namespace echelon {

namespace {

// States are saved by name, beside the masters.
void check_state_names(const std::vector<std::string>& names) {
  for (auto name = names.begin(); name != names.end(); ++name)
    if (name->empty() || name->find('/') != std::string::npos || *name == "master" ||
        *name == "fixed" || *name == "value" || *name == "grad" ||
        std::find(names.begin(), name, *name) != name)
      throw InvalidArgument(fmt::format(
          "an optimiser cannot name a state \"{}\": names are distinct, have no /, and are not "
          "master, fixed, value or grad",
          *name));
}

}  // namespace

std::shared_ptr<const Optimizer> make_optimizer(const OptimOptions& options) {
  if (options.custom) {
    check_state_names(options.custom->state_names());
    return options.custom;
  }
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

at::Tensor rate_of(const StepScalars& scalars, double factor) {
  return factor == 1 ? scalars.rate : scalars.rate * factor;
}

std::vector<SliceLists> lists_by_group(const std::vector<Slice>& slices, std::size_t states) {
  std::vector<SliceLists> groups;
  for (const auto& slice : slices) {
    auto group = std::ranges::find_if(groups, [&](const SliceLists& one) {
      return one.rate == slice.rate && one.decay == slice.decay;
    });
    if (group == groups.end()) {
      groups.push_back({slice.rate, slice.decay, {}, {}, {}});
      group = std::prev(groups.end());
      group->state.resize(states);
    }
    group->values.push_back(slice.value);
    group->grads.push_back(slice.grad);
    for (std::size_t i = 0; i < states; ++i) group->state[i].push_back(slice.state[i]);
  }
  return groups;
}

}  // namespace echelon
