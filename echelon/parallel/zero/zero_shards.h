// How ranks that share a model bring groups of it together and give gradients to their owners: the
// exchanges of ZeRO. Rank r of n owns the r-th of n even slices of every group (Stack::groups).
//
//   stage 1  gradients are reduced where they lie; the own slice of each group is then the sum
//   stage 2  a group's gradients have memory while its backward runs; the own slices are kept
//   stage 3  so have its values: they are gathered from the owners' slices, which are all that is
//            kept
//
// Gradients of bf16 and fp16 models may be summed in fp32: stage 1 then reduces the Stack's sums;
// in stages 2 and 3 a group's gradients are widened when its backward is done, reduced so, and the
// own slices are fp32. Where the next micro-batch begins before they go to their owners (`widen`),
// the widened ones are kept until then, and the next are added to them.
//
// Memory that is lent to groups is the communicator's, so a gather on one host reads the owners'
// slices and writes each element once; it is used again for the next group. An owner that is alone
// has all of a group in its slice: layers work in there and nothing is lent, but for gradients that
// have still to be widened or summed across hosts, and for what a tier keeps.
//
// Hybrid sharding: the owners are the ranks of a host and every host has a copy of everything.
// Gradients are then summed within a host, and the owners of the same slice sum theirs across.
// Slices that a tier keeps (stage 3) come from there to be gathered, and gradients go there.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/parallel/zero/lending_pool.h"
#include "echelon/parallel/zero/tier.h"
#include "echelon/step/shards.h"

namespace echelon {

// Who shares a model out.
struct Owners {
  std::shared_ptr<Communicator> shards;    // one slice each
  std::shared_ptr<Communicator> replicas;  // those with the same slice; null: there are no others
};
// All ranks, or (per_host) those of each host; hosts must then have as many ranks each. Collective.
Owners owners_of(std::shared_ptr<Communicator> ranks, bool per_host);

class ZeroShards final : public Shards {
 public:
  // For a stack that was allocated with the placement below, with fp32 sums where gradients are
  // summed so. With stage 3, what a tier has the arrays "value" (or "master", where the types are
  // the same) and "grad" for is kept there.
  ZeroShards(Stack& stack, Owners owners, int stage, Tier* tier = nullptr);
  ~ZeroShards() override;
  static Stack::Placement placement(std::shared_ptr<Communicator> shards, int stage,
                                    at::Device device, std::int64_t smallest_group);

  // What needs memory beside the owners' slices while a step runs.
  struct Lending {
    bool values = false, gradients = false;
  };
  static Lending lending(int stage, int owners, bool has_replicas, bool offloaded, bool fp32_sums);
  static constexpr std::size_t most_scattering = 2;  // groups, whose memory is held meanwhile

  int stage() const { return stage_; }
  Communicator& ranks() const { return *ranks_; }  // one for each slice
  Communicator* replicas() const { return replicas_.get(); }

  // This rank's slice of a group within the Stack's buffer, in elements.
  std::int64_t slice_begin(int group) const;
  std::int64_t slice_numel(int group) const;

  // The own slices: of the values, and of the summed gradients after settle(). Not of what a tier
  // keeps.
  at::Tensor values(int group) const;
  at::Tensor grads(int group) const;
  const at::Tensor& all_values() const { return own_values_; }  // stage 3: of all groups
  at::ScalarType sum_type() const;
  // The norm of the own gradients of a group, in the wide type, where a tier keeps them.
  const at::Tensor& norm(int group) const { return norms_[std::size_t(group)]; }

  // Stages 1 and 2: the owners' slices have changed; begins to bring them to all.
  void publish();
  void publish(int group);
  void wait_for_values();  // until all that was published has come

  void fetch(int group) override;
  void gather(int group) override;
  void use(int group) override;
  void release(int group) override;
  void open(int group) override;
  void widen(int group) override;
  void scatter(int group) override;
  void settle() override;
  void begin_step() override;

  double exchanging() const override { return exchanging_; }
  double waited() const override { return waited_; }

 private:
  struct Scattering {
    int group = -1;
    Work work = {};
    at::Tensor all = {};     // what is reduced, of the whole group
    at::Tensor sum = {};     // the own slice of the result
    at::Tensor memory = {};  // that of `all`, where it is a copy
    bool kept = false;       // the result is where it stays
    bool across = false;     // it is being summed over the replicas
  };
  class CopyLane;
  at::Tensor take(std::int64_t numel, at::ScalarType type);
  Tier::Run kept_values(int group) const;
  Tier::Run kept_grads(int group) const;
  at::Tensor own_part(const Scattering& one) const;
  void sum_across(Scattering& one);
  void keep(int group, at::Tensor sum);
  void wait(Work& work);
  void finish(Scattering& one);

  Stack& stack_;
  std::shared_ptr<Communicator> ranks_, replicas_;
  int stage_;
  Tier* tier_;  // null: slices are kept here
  Lending lending_;
  std::unique_ptr<CopyLane> lane_;   // between a device and the host's memory
  std::vector<std::int64_t> first_;  // by group: where its own slice begins in the flat ones below
  at::Tensor own_values_, own_grads_;  // stage 3; stages 2 and 3
  std::vector<Work> gathering_;        // by group
  std::vector<Scattering> scattering_;
  std::vector<bool> kept_;         // by group: own_grads_ has gradients of this step
  std::vector<at::Tensor> norms_;  // by group
  LendingPool<at::Tensor> pool_;
  double exchanging_ = 0, waited_ = 0;
};

}  // namespace echelon
