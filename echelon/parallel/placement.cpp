#include "echelon/parallel/placement.h"

namespace echelon {

Placement placement_of(std::int64_t stage, const ZeroOptions& zero, int owners, bool replicas,
                       bool fp32_sums) {
  Placement placement;
  if (stage == 0) return placement;
  placement.owners = owners;
  placement.replicas = replicas;
  placement.state.sliced = true;
  placement.gradients.sliced = stage >= 2;
  placement.values.sliced = stage >= 3;
  if (zero.offload == Offload::host) placement.state.store = Placement::Store::host;
  if (zero.offload == Offload::disk) placement.state.store = Placement::Store::disk;
  if (placement.values.sliced)
    placement.values.store = placement.gradients.store = placement.state.store;
  // A single owner's slice is the whole group. Layers work in the slice, unless it is stored
  // elsewhere or gradients still have to be widened or summed over replicas.
  const bool apart = owners > 1 || placement.offloads_values();
  placement.values.pooled = placement.values.sliced && apart;
  placement.gradients.pooled = placement.gradients.sliced && (apart || replicas || fp32_sums);
  return placement;
}

}  // namespace echelon
