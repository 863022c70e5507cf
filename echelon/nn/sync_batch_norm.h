// Batch norm whose statistics are those of the whole batch, although ranks have parts of it. To be
// used inside a torch::nn::Module like torch's BatchNorm, with its options and the names of its
// parameters and buffers:
//
//   struct NetImpl : torch::nn::Module {
//     echelon::SyncBatchNorm norm{register_module("norm", echelon::SyncBatchNorm(64))};
//     …
//   };
//
// A Trainer and a DataParallel tell it the ranks that have the other parts. The result is that of
// one process with the whole batch, to rounding: outputs, gradients and running statistics, also if
// the parts are of different sizes. Without ranks, in evaluation, and where a rank has the whole
// batch, it is torch's batch norm.
//
// In a training forward each rank sends its mean, its sum of squared differences and its count, and
// combines those of all ranks in rank order (Chan et al., 1979), so all get the same bits. In
// backward the ranks sum two numbers per channel. With C channels and p ranks, all ranks together
// send 8 (2 C + 1) p (p - 1) bytes in forward and, with a ring, 8 * 4 C (p - 1) in backward; the
// ledger lists both as "batch norm". All ranks must run the same layers in the same order, which
// they do unless a module's forward decides by its input.
//
// With several micro-batches, the statistics are those of one micro-batch of every rank.
#pragma once

#include <torch/csrc/api/include/torch/nn/modules/batchnorm.h>

#include <memory>

namespace echelon {

class BatchRanks;

class SyncBatchNormImpl
    : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  using Base = torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions>;
  explicit SyncBatchNormImpl(std::int64_t channels)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(channels)) {}
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& like) : Base(like) {}

  // [samples, channels, …] with any number of further dimensions.
  at::Tensor forward(const at::Tensor& x);
  void pretty_print(std::ostream& stream) const override;

  // Null, or destroyed since: this rank has the whole batch.
  void share_batch(const std::shared_ptr<BatchRanks>& ranks) { ranks_ = ranks; }

 protected:
  void _check_input_dim(const at::Tensor& x) override;

 private:
  std::weak_ptr<BatchRanks> ranks_;
};
TORCH_MODULE(SyncBatchNorm);

// Tells every SyncBatchNorm in the module which ranks share the batch; returns whether there is
// one.
bool share_batch(torch::nn::Module& module, const std::shared_ptr<BatchRanks>& ranks);
bool has_sync_batch_norm(const torch::nn::Module& module);

}  // namespace echelon
