#include "echelon/parallel/zero/zero_step.h"

namespace echelon {

std::int64_t smallest_group(const ZeroOptions& options, at::ScalarType type) {
  return static_cast<std::int64_t>(options.group * 1024 * 1024 /
                                   static_cast<double>(at::elementSize(type)));
}

std::vector<std::int64_t> describe_groups(StepShape& shape, const Stack& stack,
                                          const Placement& placement, at::ScalarType type) {
  for (int l = 0; l < stack.size(); ++l) shape.uses.push_back(stack.groups_of(l));
  shape.groups = static_cast<int>(stack.groups().size());
  shape.sliced_values = placement.values.sliced;
  shape.sliced_gradients = placement.gradients.sliced;
  shape.offloaded_values = placement.offloads_values();
  std::vector<std::int64_t> bytes;
  for (const auto& group : stack.groups())
    bytes.push_back(group.numel * static_cast<std::int64_t>(at::elementSize(type)));
  shape.tied_groups.assign(stack.groups().size(), false);
  for (const auto* tied : stack.tied_across())
    if (tied->trainable) shape.tied_groups[std::size_t(stack.group_of(*tied))] = true;
  return bytes;
}

}  // namespace echelon
