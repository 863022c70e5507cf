// A step as a table of actions: what one rank does, in order. A strategy is a pure function to such
// a table; one executor runs any of them, and `validate` says beforehand whether it can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "echelon/comm/dimension.h"

namespace echelon {

struct Action {
  enum class Kind {
    forward,    // layer, micro-batch: run it and keep what its backward needs
    recompute,  // layer, micro-batch: run forward again, whose first time kept the input alone
    backward,   // layer, micro-batch: gradients of input and parameters; frees what forward kept
    input,      // layer, micro-batch: the gradient of the input alone, as early as can be
    weight,     // layer, micro-batch: then those of the parameters; frees what forward kept
    receive,  // layer, micro-batch: its input begins to come from the rank that has the layer below
    send,     // layer, micro-batch: its output begins to go to the rank that has the layer above
    receive_grad,  // layer, micro-batch: the gradient of its output begins to come from above
    send_grad,     // layer, micro-batch: that of its input begins to go below
    reduce,        // bucket: begins to average its gradients over the ranks; the next actions run
                   // meanwhile
    fetch,         // group: begins to come from where its owner keeps it
    gather,        // group: begins to bring its parameters together
    wait_unshard,  // group: its parameters are there
    reshard,       // group: they are needed no more for now
    alloc_grads,   // group: its gradients get memory
    scatter,       // group: begins to sum its gradients over the ranks, each slice to its owner
    tie,           // gradients of parameters that layers of several ranks share: summed over them
    synchronize,   // all that was begun is done; the loss becomes that of all ranks
    update,        // all gradients are there: optimiser
    push,          // all gradients are there: whoever runs the step takes them
  };
  Kind kind;
  int layer = 0;
  int micro_batch = 0;
  int bucket = 0;
  int group = 0;
};

using Table = std::vector<Action>;

std::string to_string(const Action& action);  // "forward(layer 3, micro-batch 0)"

// A run of the Stack's gradient buffer that is reduced together.
struct Bucket {
  std::int64_t begin = 0, end = 0;  // elements
  int layer = 0, top = 0;           // the lowest and the highest layer with gradients in it
  Dimensions summed_over = batch_dimensions;  // all of its gradients

  std::int64_t numel() const { return end - begin; }
};

// What a table is for.
struct StepShape {
  int layers = 0;
  int micro_batches = 1;
  std::vector<Bucket> buckets = {};
  // Where parameters are shared out: the groups that each layer computes with, and their number.
  std::vector<std::vector<int>> uses = {};
  int groups = 0;
  // Owners keep slices of them: a group's values, or gradients, are there as a whole only from
  // gather to release, or from open to scatter.
  bool sliced_values = false, sliced_gradients = false;
  bool offloaded_values = false;       // owners fetch their slices, from disk say, before a gather
  bool tied = false;                   // layers of other ranks use parameters of this one's too
  std::vector<bool> tied_groups = {};  // by group: it has some of those
  // By layer: its forward keeps the input alone, and runs again before its backward. Empty: none.
  std::vector<bool> recompute = {};

  // By layer: whether this rank has it; the others' inputs and gradients come and go. Empty: all.
  std::vector<bool> own = {};

  bool has(int layer) const {
    return layer >= 0 && layer < layers && (own.empty() || own[std::size_t(layer)]);
  }
  bool ties(int group) const {
    return std::size_t(group) < tied_groups.size() && tied_groups[std::size_t(group)];
  }
  bool recomputes(int layer) const {
    return std::size_t(layer) < recompute.size() && recompute[std::size_t(layer)];
  }
};

// One process: each micro-batch forward through all layers and backward again, then the update. The
// activations of one micro-batch are alive at a time. A layer's recompute stands right before its
// backward.
Table one_process(const StepShape& shape);
Table one_process(int layers, int micro_batches);
// The same for a worker whose gradients others apply.
Table for_servers(const StepShape& shape);

// Overlays: what ranks of the data dimension exchange, laid over any order of computation (one
// process's, a pipeline's), with the step's end.

// As soon as a bucket's gradients are complete their reduction begins, and all are synchronized
// before the update. Tied gradients are summed after that: each holder's are then the same on all
// data ranks, and so are their sums on all holders, to the bit. Without buckets: the end alone.
Table with_reductions(const Table& computation, const StepShape& shape);

// Whether an action computes (forward, recompute, backward or a part of one), and whether it
// changes gradients.
bool computes(const Action& action);
bool changes_gradients(const Action& action);

// Throws InvalidArgument naming the first action that cannot run: a layer before its input exists,
// a backward before its forward or before the backward of the layer above, anything twice, a
// reduction before its bucket is complete, an update before the last backward or (where there are
// buckets) before all are reduced and synchronized, no update at the end, a forward without its
// backward; a layer whose groups are not there or whose gradients have no memory, gradients that
// change after they went to their owners, and memory that is not given back; a backward without the
// recompute that its layer needs, and one that is too early, twice or not needed; a layer that this
// rank has not, one whose input or gradient was not received, something sent that is not there yet
// or that nobody needs, and what others need that is not sent; tied gradients that go to their
// owners before they are summed, and those that are summed before their reductions are
// synchronized.
void validate(const Table& table, const StepShape& shape);

}  // namespace echelon
