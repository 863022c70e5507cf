// A step as a table of actions: what one rank does, in order. A strategy is a pure function to such
// a table; one executor runs any of them, and `validate` says beforehand whether it can.
#pragma once

#include <string>
#include <vector>

namespace echelon {

struct Action {
  enum class Kind {
    forward,   // layer, micro-batch: run it and keep what its backward needs
    backward,  // layer, micro-batch: gradients of input and parameters; frees what forward kept
    reduce,    // all gradients and the loss become the mean over the ranks
    update,    // all gradients are there: optimiser
  };
  Kind kind;
  int layer = 0;
  int micro_batch = 0;
};

using Table = std::vector<Action>;

std::string to_string(const Action& action);  // "forward(layer 3, micro-batch 0)"

// One process: each micro-batch forward through all layers and backward again, then the update. The
// activations of one micro-batch are alive at a time.
Table one_process(int layers, int micro_batches);

// Data parallel: the same on every rank's share of the batch, with all gradients averaged over the
// ranks before the update.
Table data_parallel(int layers, int micro_batches);

// Throws InvalidArgument naming the first action that cannot run: a layer before its input exists,
// a backward before its forward or before the backward of the layer above, anything twice, a
// reduction or an update before the last backward, no update at the end, a forward without its
// backward.
void validate(const Table& table, int layers, int micro_batches);

// The most activations alive at once, in (layer, micro-batch) pairs.
int peak_activations(const Table& table);

}  // namespace echelon
