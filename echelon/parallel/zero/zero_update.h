// The optimiser update of a sharded model: each rank updates the slices it owns (zero_shards.h).
// Masters, moments and the rest of the optimiser state exist once in the whole job.
//
// If a tier stores them, they are processed piece by piece: while the CPU updates one piece, the
// next is read and the previous one is written. Gradients from a GPU and new values for it pass
// through pinned memory at the same time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/optim/slice_update.h"
#include "echelon/optim/update.h"
#include "echelon/parallel/zero/zero_shards.h"

namespace echelon {

class ZeroUpdate final : public Update {
 public:
  // With a tier: updates `piece` elements at a time.
  ZeroUpdate(Stack& stack, ZeroShards& shards, const OptimOptions& options, Tier* tier = nullptr,
             std::int64_t piece = 0, const std::optional<LossScale::Setup>& scaling = {},
             PartSums part_sums = {});
  ~ZeroUpdate() override;
  // The arrays that the tier must have; `sums` is the type in which gradients are summed.
  static std::vector<Tier::Array> arrays(const OptimOptions& options, at::ScalarType type,
                                         at::ScalarType sums, const Placement& placement,
                                         at::Device device);

  void load(const ValueSource& source) override;
  const at::Tensor& rate() const override { return slices_->rate(); }
  // Call it after the gradients are reduced to their owners and synchronized.
  void apply(const at::Tensor& loss) override;
  const at::Tensor& norm() const override { return norm_; }
  const at::Tensor& skipped() const override { return slices_->skipped(); }
  const at::Tensor& halted() const override { return slices_->halted(); }
  LossScale* loss_scale() const override { return slices_->loss_scale(); }
  double host_seconds() const override { return host_seconds_; }
  double updates() const override { return slices_->updates(); }
  void publish() override;
  void restart(double updates) override { slices_->restart(updates); }

  const std::vector<std::string>& kinds() const override { return kinds_; }
  std::vector<StateSlice> slices() const override;
  at::TensorOptions state_options() const override;
  Communicator* owners(const Parameter& parameter) const override {
    return shards_.owners(stack_.group_of(parameter));
  }
  std::vector<std::size_t> owned_by(const Parameter& parameter) const override;

 private:
  struct Piece {
    int group;
    std::int64_t begin, numel;  // within the slice
  };
  class Staging;
  void walk(bool values_change, const std::function<void(const SliceUpdate::Run&)>& visit);
  std::vector<Tier::Run> kept(const Piece& piece, bool with_grads) const;
  void put_values(std::size_t piece, const at::Tensor& masters);
  void sum_over_owners(at::Tensor rows) const;

  Stack& stack_;
  ZeroShards& shards_;
  Tier* tier_;
  PartSums part_sums_;
  std::vector<std::string> kinds_;
  std::vector<Piece> pieces_;  // of all own slices, if a tier stores them
  std::unique_ptr<Staging> staging_;
  at::Tensor masters_;  // of all own slices, if the model's type is too narrow for masters
  std::unique_ptr<SliceUpdate> slices_;
  at::Tensor norm_;
  double host_seconds_ = 0;
};

}  // namespace echelon
