// The update of ranks that share a model out: each applies it to the slices it owns
// (zero_shards.h). Masters, moments and what else the optimiser keeps exist once in the whole job.
#pragma once

#include <memory>
#include <vector>

#include "echelon/optim/slice_update.h"
#include "echelon/optim/update.h"
#include "echelon/parallel/zero/zero_shards.h"

namespace echelon {

class ZeroUpdate final : public Update {
 public:
  ZeroUpdate(Stack& stack, ZeroShards& shards, const OptimOptions& options);

  void load(const ValueSource& source) override;
  const at::Tensor& rate() const override { return slices_->rate(); }
  // The gradients have been given to their owners and are settled.
  void apply(const at::Tensor& loss) override;
  const at::Tensor& norm() const override { return norm_; }
  const at::Tensor& halted() const override { return slices_->halted(); }
  double updates() const override { return slices_->updates(); }
  void publish() override;
  void restart(double updates) override { slices_->restart(updates); }

  // By group: what this rank keeps of it.
  std::vector<SliceUpdate::PartedState> state() const { return slices_->parted_state(); }
  // One of those (0: masters) of a whole parameter, on every rank: collective. No more than that is
  // ever in one place.
  at::Tensor whole(std::size_t kind, const Parameter& parameter) const;
  // Puts this rank's part of a whole parameter in its place.
  void put(std::size_t kind, const Parameter& parameter, const at::Tensor& whole);

 private:
  // fn(part, of the parameter) for what this rank owns of it, both flat.
  template <class Fn>
  void each_part(std::size_t kind, const Parameter& parameter, const Fn& fn) const;

  Stack& stack_;
  ZeroShards& shards_;
  at::Tensor masters_;  // of all own slices, where the model's type is too narrow for them
  std::unique_ptr<SliceUpdate> slices_;
  at::Tensor norm_;
};

}  // namespace echelon
