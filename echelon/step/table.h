// A step as a table of actions: what one rank does, in order. A strategy is a pure function that
// returns such a table. One executor runs any table, and `validate` checks it beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "echelon/comm/dimension.h"

namespace echelon {

struct Action {
  enum class Kind {
    forward,       // layer, micro-batch: run it and keep what its backward needs
    recompute,     // layer, micro-batch: run forward again; the first run kept only the input
    backward,      // layer, micro-batch: gradients of input and parameters; frees what forward kept
    input,         // layer, micro-batch: only the gradient of the input, as early as possible
    weight,        // layer, micro-batch: gradients of the parameters; frees what forward kept
    receive,       // layer, micro-batch: start receiving its input from the rank below
    send,          // layer, micro-batch: start sending its output to the rank above
    receive_grad,  // layer, micro-batch: start receiving the gradient of its output
    send_grad,     // layer, micro-batch: start sending the gradient of its input
    reduce,        // bucket: start averaging its gradients over the ranks; later actions overlap it
    fetch,         // group: start loading it from where its owner keeps it
    gather,        // group: start the all-gather of its parameters
    wait_unshard,  // group: wait until its parameters are complete
    reshard,       // group: its parameters are not needed for now
    alloc_grads,   // group: allocate its gradients
    scatter,       // group: start the reduce-scatter of its gradients, each slice to its owner
    tie,           // sum the gradients of parameters that layers on several ranks share
    synchronize,   // wait for everything started; the loss becomes the loss of all ranks
    update,        // all gradients are complete: run the optimiser
    push,          // all gradients are complete: the caller of the step takes them
  };
  Kind kind;
  int layer = 0;
  int micro_batch = 0;
  int bucket = 0;
  int group = 0;
};

using Table = std::vector<Action>;

std::string to_string(const Action& action);  // "forward(layer 3, micro-batch 0)"

// A range of the Stack's gradient buffer that is reduced as a whole.
struct Bucket {
  std::int64_t begin = 0, end = 0;            // elements
  int layer = 0, top = 0;                     // the lowest and highest layer with gradients in it
  Dimensions summed_over = batch_dimensions;  // of all its gradients

  std::int64_t numel() const { return end - begin; }
};

// What is needed to build and validate a step table.
struct StepShape {
  int layers = 0;
  int micro_batches = 1;
  std::vector<Bucket> buckets = {};
  // If parameters are sharded: the groups that each layer computes with, and the number of groups.
  std::vector<std::vector<int>> uses = {};
  int groups = 0;
  // Owners keep slices: a group's whole values exist only from gather to reshard, and its whole
  // gradients only from alloc_grads to scatter.
  bool sliced_values = false, sliced_gradients = false;
  bool offloaded_values = false;       // owners fetch their slices, e.g. from disk, before a gather
  bool tied = false;                   // layers on other ranks also use parameters of this rank
  std::vector<bool> tied_groups = {};  // by group: it contains tied parameters
  // By layer: its forward keeps only the input and runs again before its backward. Empty: none.
  std::vector<bool> recompute = {};

  // The lowest layer that trains. The layers below only run forward, and no gradient goes to them.
  int lowest = 0;

  // By layer: whether this rank has it. Inputs and gradients of the others are received and sent.
  // Empty: all.
  std::vector<bool> own = {};

  bool has(int layer) const {
    return layer >= 0 && layer < layers && (own.empty() || own[std::size_t(layer)]);
  }
  bool goes_back(int layer) const { return layer >= lowest; }
  bool ties(int group) const {
    return std::size_t(group) < tied_groups.size() && tied_groups[std::size_t(group)];
  }
  bool recomputes(int layer) const {
    return std::size_t(layer) < recompute.size() && recompute[std::size_t(layer)];
  }
};

// One process: each micro-batch runs forward through all layers and back, then the update follows.
// Only one micro-batch's activations are alive at a time. A layer's recompute comes right before
// its backward.
Table one_process(const StepShape& shape);
Table one_process(int layers, int micro_batches);
// The same for a worker whose gradients are applied by parameter servers.
Table for_servers(const StepShape& shape);

// Overlays: the exchanges between ranks of the data dimension, added to any order of computation
// (one process, a pipeline), together with the end of the step.

// Starts the reduction of a bucket as soon as its gradients are complete and synchronizes all
// before the update. Tied gradients are summed after that: each holder's gradients are then the
// same on all data ranks, so their sums are the same on all holders, to the bit. Without buckets,
// adds only the end.
Table with_reductions(const Table& computation, const StepShape& shape);

// Whether an action computes (forward, recompute, backward or a part of it), and whether it changes
// gradients.
bool computes(const Action& action);
bool changes_gradients(const Action& action);

// Throws InvalidArgument that names the first action that cannot run. It checks:
//   - order: a layer runs after its input exists; a backward runs after its forward and after the
//     backward of the layer above; nothing runs twice; every forward from the lowest layer that
//     trains has its backward, and no other has one; the table ends with an update;
//   - reductions: a bucket is reduced when it is complete; the update follows the last backward
//     and, if there are buckets, comes after all are reduced and synchronized;
//   - groups: a layer's groups are gathered and its gradients allocated when it runs; gradients do
//     not change after they went to their owners; all memory is given back;
//   - recompute: a backward has the recompute that its layer needs; no recompute is too early,
//     twice or unneeded;
//   - pipelines: this rank has the layer; inputs and gradients are received before they are used;
//     what is sent exists and is needed, and everything that others need is sent;
//   - ties: tied gradients are summed after their reductions are synchronized and before they go to
//     their owners.
void validate(const Table& table, const StepShape& shape);

}  // namespace echelon
