// Data parallelism for your own torch::nn::Module and any optimiser: every rank computes on its
// part of the batch, and gradients are averaged over the ranks while backward runs.
//
//   auto ranks = Communicator::world();
//   Net net;
//   DataParallel parallel(*net, ranks);  // all ranks now have rank 0's parameters and buffers
//   for (…) {
//     optimizer.zero_grad();
//     loss_of(net->forward(mine.input), mine.target).backward();
//     parallel.wait();                   // gradients are now the mean over the ranks
//     optimizer.step();
//   }
//
// Gradients are stored in buckets, which the communicator reduces in place. A parameter's `grad()`
// is a view of its bucket. An optimiser may drop that view (zero_grad does by default): it is
// restored at the cost of a copy. A parameter that backward does not reach on some rank counts as
// zero there. The result equals that of one process if every rank's loss is the mean over its part
// of the batch and all parts are equally large.
//
// Gradient accumulation: disable the reduction for all but the last backward, then wait once:
//
//   { const auto quiet = parallel.accumulate(); loss_a.backward(); }
//   loss_b.backward();
//   parallel.wait();
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/parallel/options.h"

namespace torch::nn {
class Module;
}

namespace echelon {

class BatchRanks;

class DataParallel {
 public:
  // Parameters that do not require a gradient at construction are ignored from then on. The module
  // must outlive this object.
  DataParallel(torch::nn::Module& module, std::shared_ptr<Communicator> ranks,
               const ParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Call it after backward and before the optimiser. Throws if a reduction or another rank failed.
  void wait();

  // While this object lives, backward only accumulates gradients and reduces nothing.
  class Accumulation {
   public:
    explicit Accumulation(DataParallel& of);
    ~Accumulation();
    Accumulation(const Accumulation&) = delete;
    Accumulation& operator=(const Accumulation&) = delete;

   private:
    DataParallel& of_;
  };
  Accumulation accumulate() { return Accumulation(*this); }

  // Broadcasts rank 0's buffers (running statistics) to all ranks.
  void share_buffers();

  std::size_t buckets() const;

 private:
  class Hook;
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks, which may outlive this object
  torch::nn::Module& module_;
  std::shared_ptr<BatchRanks> batch_ranks_;  // null: the module has no SyncBatchNorm
};

}  // namespace echelon
