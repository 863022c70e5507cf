// A step as a table of actions: what one rank does, in order. A strategy is a pure function to such
// a table; one executor runs any of them, and `validate` says beforehand whether it can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace echelon {

struct Action {
  enum class Kind {
    forward,    // layer, micro-batch: run it and keep what its backward needs
    recompute,  // layer, micro-batch: run forward again, whose first time kept the input alone
    backward,   // layer, micro-batch: gradients of input and parameters; frees what forward kept
    reduce,     // bucket: begins to average its gradients over the ranks; the next actions run
                // meanwhile
    fetch,      // group: begins to come from where its owner keeps it
    gather,     // group: begins to bring its parameters together
    use,        // group: its parameters are there
    release,    // group: they are needed no more for now
    open,       // group: its gradients get memory
    scatter,    // group: begins to sum its gradients over the ranks, each slice to its owner
    settle,     // all that was begun is done; the loss becomes that of all ranks
    update,     // all gradients are there: optimiser
    hand_over,  // all gradients are there: whoever runs the step takes them
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
  int layer = 0;                    // whose backward, of all micro-batches, completes it

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
  bool lent_values = false, lent_gradients = false;  // groups have memory only while it is lent
  bool kept_away = false;  // owners fetch their values, from disk say, before they are gathered
  // By layer: its forward keeps the input alone, and runs again before its backward. Empty: none.
  std::vector<bool> recompute = {};

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

// Parameters, gradients or optimiser state shared out over ranks (ZeRO stages 1, 2, 3). Stage 1
// gives gradients to their owners after the last micro-batch, 2 and 3 after each. Stage 3 brings a
// group together before its layers run and lets it go after; the next ones already come, as long as
// all that are there hold at most `prefetch` bytes (`bytes`: of each group), but at least one. What
// two neighbouring actions need stays: the last group of forward is there for backward. What is
// kept away is fetched while the group before it is gathered.
Table zero(const StepShape& shape, int stage, const std::vector<std::int64_t>& bytes,
           std::int64_t prefetch);

// Throws InvalidArgument naming the first action that cannot run: a layer before its input exists,
// a backward before its forward or before the backward of the layer above, anything twice, a
// reduction before its bucket is complete, an update before the last backward or (where there are
// buckets) before all are reduced and settled, no update at the end, a forward without its
// backward; a layer whose groups are not there or whose gradients have no memory, gradients that
// change after they went to their owners, and memory that is not given back; a backward without the
// recompute that its layer needs, and one that is too early, twice or not needed.
void validate(const Table& table, const StepShape& shape);

// The most activations alive at once, in (layer, micro-batch) pairs. One that is computed again
// counts from its recompute on: before that its input is all there is.
int peak_activations(const Table& table);

}  // namespace echelon
