// Data parallelism for a torch::nn::Module of your own and any optimiser: every rank computes on
// its part of the batch, and backward averages the gradients over the ranks while it runs.
//
//   auto ranks = Communicator::world();
//   Net net;
//   DataParallel parallel(*net, ranks);  // rank 0's parameters and buffers are everybody's now
//   for (…) {
//     optimizer.zero_grad();
//     loss_of(net->forward(mine.input), mine.target).backward();
//     parallel.wait();                   // gradients are the mean over the ranks
//     optimizer.step();
//   }
//
// Gradients lie in buckets that the communicator works on in place; `grad()` of a parameter is a
// view of its bucket. An optimiser may drop it (zero_grad's default): it is put back, at the price
// of a copy. A parameter that a rank's backward did not reach counts as zero there. Losses must be
// means over each rank's part, and the parts equally large, for the result to be that of one
// process.
//
// Accumulation: wait for the last backward only, and tell the others not to exchange:
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

class DataParallel {
 public:
  // Parameters that need no gradient now are left alone for good. The module must outlive this.
  DataParallel(torch::nn::Module& module, std::shared_ptr<Communicator> ranks,
               const ParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // After backward, before the optimiser. Throws what went wrong among the ranks.
  void wait();

  // While it lives, backward only adds to the gradients.
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

  // Sends rank 0's buffers (running statistics) to all.
  void share_buffers();

  std::size_t buckets() const;

 private:
  class Hook;
  struct State;
  std::shared_ptr<State> state_;  // with the hooks, which may outlive this
  torch::nn::Module& module_;
};

}  // namespace echelon
