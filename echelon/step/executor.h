// Runs a step's table over a Stack. Between layers it holds the tensors of each boundary and
// micro-batch: a layer's outputs or their gradients, freed as soon as their only reader has run.
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

// The shape that the table of a step is built for. `own`: the layers that this rank has; empty:
// all.
StepShape step_shape(const Stack& stack, int micro_batches, const std::vector<bool>& own);

// Where the time of a step went, in host seconds. On a GPU the host only issues work, so these are
// zero there, except for an update that runs on the host while the GPU waits, and for the data.
struct StepTimes {
  double compute = 0;  // forward and backward
  double exposed = 0;  // communication that the step waited for
  double hidden = 0;   // communication that overlapped computation
  double update = 0;   // the optimiser
  double data = 0;     // before the step: until its batch was there; 0 if it was there already
};

// An action of the last step and when it ran, by the host's clock. `begin` is when the action had
// all its inputs. A reduction is timed from its start to its completion.
struct TracedAction {
  Action action;
  std::chrono::steady_clock::time_point begin, end;
};

class Executor {
 public:
  // The ranks that a step exchanges with, and how.
  struct Links {
    SumRanks ranks = {};         // reductions and losses are summed over these; null: none
    Shards* shards = nullptr;    // gathers groups and scatters gradients, if the table does
    Neighbours neighbours = {};  // owners of the other layers of a pipeline
    std::shared_ptr<Exchange> exchange = plain_exchange();
  };

  // Validates the table. `update` may be null if the table has no update. Collective if there are
  // neighbours.
  Executor(Stack& stack, Update* update, Table table, StepShape shape);
  Executor(Stack& stack, Update* update, Table table, StepShape shape, const Links& links);

  // From the next step on, samples may have other sizes or be cut differently. All ranks call it.
  void forget_sizes();

  // Runs one step on a batch, which is cut into micro-batches as evenly as possible and needs at
  // least one sample for each. `weight` is the batch's fraction of all samples of the step, over
  // the ranks. `first_sample` is where it begins in the global batch. If the batch has `targets`,
  // `divisor` is their number in the global batch, a scalar (double) on the device, and `weight` is
  // not used. Returns the batch's part of the mean loss, a scalar (double) on the device; after a
  // reduction, the loss of all ranks. In a pipeline all ranks get the same batch: only the first
  // layer reads its input and only the last its target, but any layer may read its other tensors.
  // Batches of different steps may differ in their sizes.
  at::Tensor run(const Batch& batch, double weight = 1, std::int64_t first_sample = 0,
                 const at::Tensor& divisor = {});

  // Forward only, nothing is kept: returns the mean loss, or the model's output if the batch has no
  // target.
  // If groups are gathered or other ranks have some of the layers, all of these ranks must make the
  // same calls. All ranks of a pipeline get the output; only the last rank gets the loss, the
  // others get zero.
  // `observe` (Pass::observe) gets the last layer's outputs, on the ranks that have it.
  at::Tensor infer(
      const Batch& batch,
      const std::function<void(const at::Tensor& output, const at::Tensor& target)>& observe = {});

  // Together with the sample, these determine the random numbers of layers: the seed, and the
  // number of the step, a scalar (int64) on the device that the caller writes before a step.
  void seed(std::uint64_t seed) { seed_ = seed; }
  const at::Tensor& step() const { return step_; }

  const StepTimes& times() const { return times_; }  // of the last step
  const StepShape& shape() const { return shape_; }
  std::size_t element_size() const {  // of a bucket
    return at::elementSize(stack_.has_fp32_sums() ? at::kFloat : stack_.type());
  }

  // The algorithm that reduces buckets from the next step on; the same on all ranks.
  void reduce_by(Algorithm algorithm) { algorithm_ = algorithm; }
  Algorithm reduces_by() const { return algorithm_; }

  // Makes every layer take `factor` times as long, by sleeping: simulates a slow machine, for tests
  // and demonstrations.
  void slow_down(double factor) { slow_ = factor; }

  // Observes gradients. before_reduce gets the gradients of this rank's batch, bucket by bucket and
  // times its weight, before they are summed over the ranks; if the batch has `targets`, its weight
  // is its fraction of the step's targets. before_update gets the sum.
  struct Probe {
    std::function<void(const at::Tensor& part, double weight)> before_reduce;
    std::function<void(const at::Tensor& gradient)> before_update;
  };
  void probe(Probe probe) { probe_ = std::move(probe); }

  // Records the actions of a step, in order, and what it exchanges (Exchange::record).
  void trace(bool on) {
    tracing_ = on;
    exchange_->record(on);
  }
  const std::vector<TracedAction>& traced() const { return traced_; }
  std::vector<Exchanged> exchanged() const { return exchange_->recorded(); }

 private:
  Tensors waited_for(Tensors tensors);
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
  std::unique_ptr<Ties> ties_;          // null: all uses of each parameter are here
  std::vector<Work> reductions_;        // under way, by bucket
  StepTimes times_;
  double slow_ = 1;
  Algorithm algorithm_ = Algorithm::automatic;
  Probe probe_;
  double weight_ = 1;  // of the current batch
  std::uint64_t seed_ = 0;
  at::Tensor step_;
  std::chrono::steady_clock::time_point began_;  // start of the current action
  bool tracing_ = false;
  std::vector<TracedAction> traced_;

  struct Place {  // of one layer and micro-batch
    Pass pass;
    Tensors inputs;                // until forward, or its recompute, has run
    Tensors grads;                 // of the outputs, until backward has run
    Tensors outputs, input_grads;  // until they are sent to another rank
  };
  Place& place(int layer, int micro_batch);
  std::vector<Place> places_;
  std::string last_batch_;  // its description: the ranks of a pipeline know the sizes
  at::Tensor loss_;
};

}  // namespace echelon
