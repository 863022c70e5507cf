// The communication of ZeRO: all-gathers a group's parameters and reduce-scatters its gradients to
// their owners. Rank r of n owns the r-th of n even slices of every group (Stack::groups). The n
// ranks are those that sum the group's gradients (ShardGroup::summed_over).
//
//   sliced state      (ZeRO-1) gradients are reduced in place; a rank's own slice of each group
//   then
//                     holds the sum
//   sliced gradients  (ZeRO-2) a group's gradients have memory only while its backward runs; a rank
//                     keeps its own slices
//   sliced values     (ZeRO-3) so do its values: they are all-gathered from the owners' slices,
//   which
//                     are all that is kept
//
// Gradients of bf16 and fp16 models may be summed in fp32. Whole gradients are then reduced in the
// Stack's sums. Sliced gradients are widened when a group's backward is done and reduced in fp32,
// and the own slices are fp32. If the next micro-batch begins before the reduce-scatter (`widen`),
// the widened gradients are kept until then, and the next micro-batch's gradients are added to
// them.
//
// Pooled memory belongs to the communicator, so an all-gather within one host reads the owners'
// slices directly and writes each element once. The memory is then reused for the next group. A
// single owner has the whole group in its slice: layers work in that slice and take no pooled
// memory, except for gradients that still have to be widened or summed across hosts, and for slices
// that a tier stores.
//
// Hybrid sharding: the owners are the ranks of one host, and every host has a copy of everything.
// Gradients are reduced within a host first; then the owners of the same slice all-reduce it across
// hosts. If a tier stores the values, they are read from it before an all-gather, and reduced
// gradients are written to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/comm/sum_ranks.h"
#include "echelon/nn/stack.h"
#include "echelon/parallel/placement.h"
#include "echelon/parallel/zero/group_memory.h"
#include "echelon/parallel/zero/tier.h"
#include "echelon/step/exchange.h"
#include "echelon/step/shards.h"

namespace echelon {

// The ranks over which a model is sharded.
struct Owners {
  SumRanks shards;                         // own one slice each of the groups that they sum
  std::shared_ptr<Communicator> replicas;  // ranks with the same slice; null: there are none
};
// All ranks, or (per_host) the ranks of each host. With per_host, every host must have the same
// number of ranks, and all groups must be summed over the same ranks. Collective.
Owners owners_of(const SumRanks& ranks, bool per_host);

class ZeroShards final : public Shards {
 public:
  // The stack must be allocated with allocation() below, with fp32 sums if gradients are summed in
  // fp32. If the placement offloads values, the tier stores them in its array "value" (or "master",
  // if both have the same type) and gradients in "grad". A tier cannot store groups that are summed
  // over fewer ranks than others.
  ZeroShards(Stack& stack, Owners owners, const Placement& placement, Tier* tier = nullptr,
             std::shared_ptr<Exchange> exchange = plain_exchange());
  ~ZeroShards() override;
  static Stack::Allocation allocation(const Placement& placement, const SumRanks& shards,
                                      at::Device device, std::int64_t smallest_group);

  const Placement& placement() const { return placement_; }
  Communicator& ranks() const { return *ranks_.batch(); }  // all ranks that own slices
  // The owners of a group's slices, including this rank; null: this rank owns the whole group.
  Communicator* owners(int group) const;
  int owner_count(int group) const;
  int rank(int group) const;
  bool have_same_owners() const { return ranks_.are_alike(); }  // of all groups
  Communicator* replicas() const { return replicas_.get(); }

  // This rank's slice of a group within the Stack's buffer, in elements.
  std::int64_t slice_begin(int group) const;
  std::int64_t slice_numel(int group) const;

  // This rank's slices: of the values, and of the summed gradients after synchronize(). Not
  // available for slices that a tier stores.
  at::Tensor values(int group) const;
  at::Tensor grads(int group) const;
  const at::Tensor& all_values() const { return own_values_; }  // sliced: of all groups
  at::ScalarType sum_type() const;
  // The norm of this rank's gradients of a group, in the wide type, if a tier stores them.
  const at::Tensor& norm(int group) const { return norms_[std::size_t(group)]; }

  // If values are whole: the owners' slices have changed; starts to all-gather them.
  void publish();
  void publish(int group);
  void wait_for_values();  // waits for everything that was published

  void fetch(int group) override;
  void gather(int group) override;
  void wait_unshard(int group) override;
  void reshard(int group) override;
  void alloc_grads(int group) override;
  void widen(int group) override;
  void scatter(int group) override;
  void synchronize() override;
  void begin_step() override;

 private:
  struct Scattering {
    int group = -1;
    Work work = {};
    at::Tensor all = {};  // the input of the reduction: the whole group
    at::Tensor sum = {};  // the own slice of the result
    bool kept = false;    // the result is already in its final place
    bool across = false;  // it is being summed over the replicas
  };
  class CopyLane;
  bool pools_values(int group) const;
  bool pools_grads(int group) const;
  Tier::Run kept_values(int group) const;
  Tier::Run kept_grads(int group) const;
  at::Tensor own_part(const Scattering& one) const;
  void sum_across(Scattering& one);
  void keep(int group, at::Tensor sum);
  void finish(Scattering& one);

  Stack& stack_;
  SumRanks ranks_;
  std::shared_ptr<Communicator> replicas_;
  Placement placement_;
  Tier* tier_;                         // null: values and gradients are stored here
  std::unique_ptr<CopyLane> lane_;     // copies between a device and host memory
  std::vector<std::int64_t> first_;    // by group: start of its own slice below
  at::Tensor own_values_, own_grads_;  // if they are sliced
  std::vector<Work> gathering_;        // by group
  std::vector<Scattering> scattering_;
  std::vector<bool> kept_;         // by group: own_grads_ holds gradients of this step
  std::vector<at::Tensor> norms_;  // by group
  GroupMemory<at::Tensor> pooled_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace echelon
