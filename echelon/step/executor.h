// Runs a step's table over a Stack. Between layers it holds one tensor a boundary and micro-batch:
// a layer's output, or the gradient for it, each freed as soon as its one reader has run.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/comm/sum_ranks.h"
#include "echelon/nn/stack.h"
#include "echelon/optim/update.h"
#include "echelon/step/boundary.h"
#include "echelon/step/exchange.h"
#include "echelon/step/shards.h"
#include "echelon/step/table.h"
#include "echelon/step/ties.h"
#include "echelon/step/widening.h"

namespace echelon {

// What the table of a step is made for; `own`: the layers that this rank has, empty: all.
StepShape step_shape(const Stack& stack, int micro_batches, const std::vector<bool>& own);

// Where the time of a step went, in seconds of the host. On a GPU the host only issues work, so
// these are zero there, but for an update that the host does while the GPU waits.
struct StepTimes {
  double compute = 0;  // forward and backward
  double exposed = 0;  // communication that the step waited for
  double hidden = 0;   // communication that ran while it computed
  double update = 0;   // the optimiser
};

// An action of the last step and when it ran, by the host's clock: since it had what it needs; of a
// reduction: from its being begun to its end.
struct TracedAction {
  Action action;
  std::chrono::steady_clock::time_point begin, end;
};

class Executor {
 public:
  // Whom a step exchanges with, and through what.
  struct Links {
    SumRanks ranks = {};         // that reductions and losses are summed over; null: nobody
    Shards* shards = nullptr;    // gathers groups and scatters gradients, where the table has that
    Neighbours neighbours = {};  // who has the other layers of a pipeline
    std::shared_ptr<Exchange> exchange = plain_exchange();
  };

  // Validates the table. `update` may be null where the table has none. With neighbours it is
  // collective.
  Executor(Stack& stack, Update* update, Table table, StepShape shape);
  Executor(Stack& stack, Update* update, Table table, StepShape shape, const Links& links);

  // Samples of a step may be of other sizes, or cut otherwise, from the next one on. All ranks.
  void forget_sizes();

  // One step on a batch of at least as many samples as there are micro-batches; they are cut as
  // evenly as can be. `weight` is the batch's share of all samples of the step, over the ranks.
  // `first_sample` is where it begins in the global batch. Gives the batch's part of the mean loss,
  // a scalar (double) on the device; after a reduction, that of all ranks. In a pipeline only the
  // rank with the first layer reads the input and only that with the last one the target, but all
  // are given as many samples.
  at::Tensor run(const at::Tensor& input, const at::Tensor& target, double weight = 1,
                 std::int64_t first_sample = 0);

  // Forward alone, nothing kept: the mean loss, or without a target the model's output. Where
  // groups are gathered, or other ranks have some of the layers, all of these ranks make the same
  // calls. All ranks of a pipeline get the output; of losses, all but the last get zero.
  at::Tensor infer(const at::Tensor& input, const at::Tensor& target);

  // What the random numbers of layers are functions of, beside the sample: the seed, and the number
  // of the step, a scalar (int64) on the device that the caller writes before a step.
  void seed(std::uint64_t seed) { seed_ = seed; }
  const at::Tensor& step() const { return step_; }

  const StepTimes& times() const { return times_; }  // of the last step
  const StepShape& shape() const { return shape_; }
  std::size_t element_size() const {  // of a bucket
    return at::elementSize(stack_.has_fp32_sums() ? at::kFloat : stack_.type());
  }

  // How buckets are reduced from the next step on; all ranks the same.
  void reduce_by(Algorithm algorithm) { algorithm_ = algorithm; }
  Algorithm reduces_by() const { return algorithm_; }

  // Every layer takes so many times longer, by sleeping: a slow machine, for tests and
  // demonstrations.
  void slow_down(double factor) { slow_ = factor; }

  // Sees gradients on their way: those of this rank's batch, bucket by bucket and times its weight,
  // before they are summed over the ranks, and the sum before the update.
  struct Probe {
    std::function<void(const at::Tensor& part, double weight)> before_reduce;
    std::function<void(const at::Tensor& gradient)> before_update;
  };
  void probe(Probe probe) { probe_ = std::move(probe); }

  // Keeps what happened in a step, in order. Buckets are then told apart in the ledger, by the tags
  // "gradients 0", "gradients 1", …
  void trace(bool on) { tracing_ = on; }
  const std::vector<TracedAction>& traced() const { return traced_; }

 private:
  at::Tensor waited_for(at::Tensor tensor);
  void forward(const Action& action);
  void recompute(const Action& action);
  void backward(const Action& action);
  void run_later(const Action& action);
  void complete_gradients(std::int64_t begin, std::int64_t end);
  void widen(int group);
  void reduce(const Bucket& bucket);
  void synchronize();
  void update();

  Stack& stack_;
  Update* update_;
  Table table_;
  StepShape shape_;
  SumRanks ranks_;
  Shards* shards_;
  std::shared_ptr<Exchange> exchange_;
  Widening widening_;
  std::unique_ptr<Boundary> boundary_;  // null: all layers are here
  std::unique_ptr<Ties> ties_;          // null: all uses of a parameter are
  std::vector<Work> reductions_;        // under way, by bucket
  StepTimes times_;
  double slow_ = 1;
  Algorithm algorithm_ = Algorithm::automatic;
  Probe probe_;
  double weight_ = 1;  // of the batch that runs
  std::uint64_t seed_ = 0;
  at::Tensor step_;
  std::chrono::steady_clock::time_point began_;  // the action that runs
  bool tracing_ = false;
  std::vector<TracedAction> traced_;

  struct Place {  // of one layer and micro-batch
    Pass pass;
    at::Tensor input;               // until forward, or its recompute, has run
    at::Tensor grad;                // for the output, until backward has run
    at::Tensor output, input_grad;  // until they are sent to another rank
  };
  Place& place(int layer, int micro_batch);
  std::vector<Place> places_;
  at::Tensor loss_;
};

}  // namespace echelon
