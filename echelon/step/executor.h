// Runs a step's table over a Stack. Between layers it holds one tensor a boundary and micro-batch:
// a layer's output, or the gradient for it, each freed as soon as its one reader has run.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/stack.h"
#include "echelon/optim/master_update.h"
#include "echelon/step/table.h"

namespace echelon {

// Where the time of a step went, in seconds of the host. On a GPU the host only issues work, so
// these are zero there.
struct StepTimes {
  double compute = 0;  // forward and backward
  double exposed = 0;  // communication that the step waited for
  double hidden = 0;   // communication that ran while it computed
  double update = 0;   // the optimiser
};

class Executor {
 public:
  // Validates the table. `ranks` are those that a reduction averages over.
  Executor(Stack& stack, MasterUpdate& update, Table table, StepShape shape,
           std::shared_ptr<Communicator> ranks = nullptr);

  // One step on a batch whose first dimension divides by the number of micro-batches. Gives the
  // mean loss, a scalar (double) on the device; after a reduction, that of all ranks.
  at::Tensor run(const at::Tensor& input, const at::Tensor& target);

  const StepTimes& times() const { return times_; }  // of the last step
  const StepShape& shape() const { return shape_; }

 private:
  void forward(const Action& action);
  void backward(const Action& action);
  void reduce(const Bucket& bucket);
  void settle();
  void update();

  Stack& stack_;
  MasterUpdate& update_;
  Table table_;
  StepShape shape_;
  std::shared_ptr<Communicator> ranks_;
  std::vector<Work> reductions_;  // under way
  StepTimes times_;

  struct Place {  // of one layer and micro-batch
    Pass pass;
    at::Tensor input;  // until forward has run
    at::Tensor grad;   // for the output, until backward has run
  };
  Place& place(int layer, int micro_batch);
  std::vector<Place> places_;
  at::Tensor loss_;
};

}  // namespace echelon
