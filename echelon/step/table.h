// A step as a table of actions: what one rank does, in order. A strategy is a pure function to such
// a table; one executor runs any of them, and `validate` says beforehand whether it can.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace echelon {

struct Action {
  enum class Kind {
    forward,    // layer, micro-batch: run it and keep what its backward needs
    backward,   // layer, micro-batch: gradients of input and parameters; frees what forward kept
    reduce,     // bucket: begins to average its gradients over the ranks; the next actions run
                // meanwhile
    settle,     // all that was begun is done; the loss becomes that of all ranks
    update,     // all gradients are there: optimiser
    hand_over,  // all gradients are there: whoever runs the step takes them
  };
  Kind kind;
  int layer = 0;
  int micro_batch = 0;
  int bucket = 0;
};

using Table = std::vector<Action>;

std::string to_string(const Action& action);  // "forward(layer 3, micro-batch 0)"

// One process: each micro-batch forward through all layers and backward again, then the update. The
// activations of one micro-batch are alive at a time.
Table one_process(int layers, int micro_batches);
// The same for a worker whose gradients others apply.
Table for_servers(int layers, int micro_batches);

// A run of the Stack's gradient buffer that is reduced together.
struct Bucket {
  std::int64_t begin = 0, end = 0;  // elements
  int layer = 0;                    // whose backward, of all micro-batches, completes it

  std::int64_t numel() const { return end - begin; }
};

// What a table is for.
struct StepShape {
  int layers = 0;
  int micro_batches = 1;
  std::vector<Bucket> buckets = {};
};

// Throws InvalidArgument naming the first action that cannot run: a layer before its input exists,
// a backward before its forward or before the backward of the layer above, anything twice, a
// reduction before its bucket is complete, an update before the last backward or (where there are
// buckets) before all are reduced and settled, no update at the end, a forward without its
// backward.
void validate(const Table& table, const StepShape& shape);

// The most activations alive at once, in (layer, micro-batch) pairs.
int peak_activations(const Table& table);

}  // namespace echelon
