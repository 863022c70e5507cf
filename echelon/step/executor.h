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

class Executor {
 public:
  // Validates the table for the stack. `ranks` are those that a reduction averages over.
  Executor(Stack& stack, MasterUpdate& update, Table table, int micro_batches,
           std::shared_ptr<Communicator> ranks = nullptr);

  // One step on a batch whose first dimension divides by the number of micro-batches. Gives the
  // mean loss, a scalar (double) on the device; after a reduction, that of all ranks.
  at::Tensor run(const at::Tensor& input, const at::Tensor& target);

 private:
  void forward(const Action& action);
  void backward(const Action& action);
  void reduce();

  Stack& stack_;
  MasterUpdate& update_;
  Table table_;
  int micro_batches_;
  std::shared_ptr<Communicator> ranks_;

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
