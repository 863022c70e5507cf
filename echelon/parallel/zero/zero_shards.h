// How ranks that share a model bring groups of it together and give gradients to their owners: the
// exchanges of ZeRO. Rank r of n owns the r-th of n even slices of every group (Stack::groups).
//
//   stage 1  gradients are reduced where they lie; the own slice of each group is then the sum
//   stage 2  a group's gradients have memory while its backward runs; the own slices are kept
//   stage 3  so have its values: they are gathered from the owners' slices, which are all that is
//            kept
//
// Memory that is lent to groups is the communicator's, so a gather on one host reads the owners'
// slices and writes each element once; it is used again for the next group.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/step/shards.h"

namespace echelon {

class ZeroShards final : public Shards {
 public:
  // For a stack that was allocated with the placement below.
  ZeroShards(Stack& stack, std::shared_ptr<Communicator> ranks, int stage);
  static Stack::Placement placement(std::shared_ptr<Communicator> ranks, int stage,
                                    at::Device device, std::int64_t smallest_group);

  int stage() const { return stage_; }
  Communicator& ranks() const { return *ranks_; }

  // This rank's slice of a group within the Stack's buffer, in elements.
  std::int64_t slice_begin(int group) const;
  std::int64_t slice_numel(int group) const;

  // The own slices, in the model's type: of the values, and of the gradients after settle().
  at::Tensor values(int group) const;
  at::Tensor grads(int group) const;

  // Stages 1 and 2: the owners' slices have changed; begins to bring them to all.
  void publish();
  void wait_for_values();  // until all that was published has come

  // Forward alone, as Stack::infer; in stage 3 all ranks make the same calls.
  at::Tensor infer(const at::Tensor& input, const at::Tensor& target);

  void gather(int group) override;
  void use(int group) override;
  void release(int group) override;
  void open(int group) override;
  void scatter(int group) override;
  void settle() override;
  void begin_step() override;

  double exchanging() const override { return exchanging_; }
  double waited() const override { return waited_; }

 private:
  struct Scattering {
    int group;
    Work work;
  };
  at::Tensor take(std::int64_t numel);
  void wait(Work& work);
  void finish(Scattering& one);

  Stack& stack_;
  std::shared_ptr<Communicator> ranks_;
  int stage_;
  std::vector<std::int64_t> first_;  // by group: where its own slice begins in the flat ones below
  at::Tensor own_values_, own_grads_;  // stage 3; stages 2 and 3
  std::vector<Work> gathering_;        // by group
  std::vector<Scattering> scattering_;
  std::vector<bool> kept_;        // by group: own_grads_ has gradients of this step
  std::vector<at::Tensor> free_;  // memory that nobody is lent
  double exchanging_ = 0, waited_ = 0;
};

}  // namespace echelon
