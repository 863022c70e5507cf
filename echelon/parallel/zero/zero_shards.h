// How ranks that share a model bring groups of it together and give gradients to their owners: the
// exchanges of ZeRO. Rank r of n owns the r-th of n even slices of every group (Stack::groups); the
// n are those who sum the group's gradients (ShardGroup::summed_over).
//
//   sliced state      (ZeRO-1) gradients are reduced in place; the own slice of each group then
//                     holds the sum
//   sliced gradients  (ZeRO-2) a group's gradients have memory while its backward runs; the own
//                     slices are kept
//   sliced values     (ZeRO-3) so have its values: they are gathered from the owners' slices, which
//                     are all that is kept
//
// Gradients of bf16 and fp16 models may be summed in fp32: whole gradients are then reduced in the
// Stack's sums; sliced ones are widened when a group's backward is done, reduced so, and the own
// slices are fp32. Where the next micro-batch begins before they go to their owners (`widen`),
// the widened ones are kept until then, and the next are added to them.
//
// Memory that is lent to groups is the communicator's, so a gather on one host reads the owners'
// slices and writes each element once; it is used again for the next group. An owner that is alone
// has all of a group in its slice: layers work in there and nothing is lent, but for gradients that
// have still to be widened or summed across hosts, and for what a tier keeps.
//
// Hybrid sharding: the owners are the ranks of a host and every host has a copy of everything.
// Gradients are then summed within a host, and the owners of the same slice sum theirs across.
// Values that a tier keeps come from there to be gathered, and gradients go there.
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

// Who shares a model out.
struct Owners {
  SumRanks shards;                         // one slice each, of the groups that they sum
  std::shared_ptr<Communicator> replicas;  // those with the same slice; null: there are no others
};
// All ranks, or (per_host) those of each host; hosts must then have as many ranks each, and all
// groups be summed over the same ranks. Collective.
Owners owners_of(const SumRanks& ranks, bool per_host);

class ZeroShards final : public Shards {
 public:
  // For a stack that was allocated as below, with fp32 sums where gradients are summed so. Where
  // the placement offloads values, the tier keeps them in its arrays "value" (or "master", where
  // the types are the same) and gradients in "grad". Groups that are summed over fewer ranks than
  // others are no tier's.
  ZeroShards(Stack& stack, Owners owners, const Placement& placement, Tier* tier = nullptr,
             std::shared_ptr<Exchange> exchange = plain_exchange());
  ~ZeroShards() override;
  static Stack::Allocation allocation(const Placement& placement, const SumRanks& shards,
                                      at::Device device, std::int64_t smallest_group);

  const Placement& placement() const { return placement_; }
  Communicator& ranks() const { return *ranks_.batch(); }  // all that own slices
  // One for each slice of a group, and this rank among them; null: it has all of it.
  Communicator* owners(int group) const;
  int owner_count(int group) const;
  int rank(int group) const;
  bool have_same_owners() const { return ranks_.are_alike(); }  // all groups
  Communicator* replicas() const { return replicas_.get(); }

  // This rank's slice of a group within the Stack's buffer, in elements.
  std::int64_t slice_begin(int group) const;
  std::int64_t slice_numel(int group) const;

  // The own slices: of the values, and of the summed gradients after synchronize(). Not of what a
  // tier keeps.
  at::Tensor values(int group) const;
  at::Tensor grads(int group) const;
  const at::Tensor& all_values() const { return own_values_; }  // sliced: of all groups
  at::ScalarType sum_type() const;
  // The norm of the own gradients of a group, in the wide type, where a tier keeps them.
  const at::Tensor& norm(int group) const { return norms_[std::size_t(group)]; }

  // Whole values: the owners' slices have changed; begins to bring them to all.
  void publish();
  void publish(int group);
  void wait_for_values();  // until all that was published has come

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
    at::Tensor all = {};  // what is reduced, of the whole group
    at::Tensor sum = {};  // the own slice of the result
    bool kept = false;    // the result is where it stays
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
  Tier* tier_;                       // null: values and gradients are kept here
  std::unique_ptr<CopyLane> lane_;   // between a device and the host's memory
  std::vector<std::int64_t> first_;  // by group: where its own slice begins in the flat ones below
  at::Tensor own_values_, own_grads_;  // where they are sliced
  std::vector<Work> gathering_;        // by group
  std::vector<Scattering> scattering_;
  std::vector<bool> kept_;         // by group: own_grads_ has gradients of this step
  std::vector<at::Tensor> norms_;  // by group
  GroupMemory<at::Tensor> pooled_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace echelon
