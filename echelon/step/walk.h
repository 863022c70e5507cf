// The table walk: adds up the time, bytes and memory of a step along its tables, without running
// it. The caller says what each action costs. The walk visits the actions of all ranks of a
// pipeline, or of one rank, in an order in which the executor could run them.
//
//   StepCosts costs;
//   costs.layers.assign(12, {.forward = 1e-3, .input = 1e-3, .weight = 1e-3, .kept = 4 << 20});
//   costs.boundaries.assign(11, {.seconds = 1e-4, .bytes = 1 << 20});
//   const auto ranks = walk(tables, costs);
//   ranks[0].end;               // seconds
//   ranks[0].activations.peak;  // bytes
//
// Forecasts read the sums. The pipeline simulator, which draws timelines, passes a visitor and sees
// every action with its times.
//
// Time. Each rank has a clock for its computation and four lanes that run beside it:
//
//   lane      actions                        waits for
//   compute   forward, recompute, backward,  the action before it; forward for its input, backward
//             input, weight, update          and input for the gradient of their output
//   up        send                           the messages sent before it
//   down      send_grad                      the messages sent before it
//   exchange  reduce, gather, scatter, tie   the exchanges started before it; gather for its fetch
//   storage   fetch                          the fetches started before it
//
// Computation waits for the exchange lane at the same points as the executor: `wait_unshard` for
// the gather of its group; `alloc_grads` until fewer than Shards::most_scattering scatters are
// under way and the last one of its own group is done; `tie` for its own exchange; `synchronize`,
// `update` and `push` for everything that was started. Ranks of the data dimension run the same
// table at the same time, so one table stands for all of them and a collective waits for no other
// rank. Nor does `tie` wait for the other stages that share the parameters. Layers that are in no
// table (when walking one rank of a pipeline) belong to ranks that are never late.
//
// Memory is the most that the executor may hold, whatever the times are:
//
//   activations  what a layer keeps from forward to backward (from its input part to its weight
//                part: `deferred`), messages that are received but not used or sent but not
//                certainly gone, and a layer's workspace while it runs
//   values       whole groups of parameters, from gather to reshard
//   gradients    whole groups, from alloc_grads until an `alloc_grads` or `synchronize` waits for
//                their scatter
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/step/table.h"

namespace echelon {

enum class Purpose;  // step/exchange.h

// What the actions of a step cost. Anything left out costs nothing.
struct StepCosts {
  // The costs of one layer and micro-batch. A backward in one piece takes input + weight; a
  // recompute takes forward.
  struct Layer {
    double forward = 0, input = 0, weight = 0;  // seconds
    std::int64_t kept = 0;                      // bytes, from forward to backward
    std::int64_t recomputed = 0;                // from recompute to backward, in addition to `kept`
    // From the input part to the weight part. A recomputed layer defers nothing: its input part
    // computes all gradients.
    std::int64_t deferred = 0;
    std::int64_t forward_workspace = 0, backward_workspace = 0;  // while it runs
  };
  // Something that moves. The caller decides what counts as its bytes.
  struct Transfer {
    double seconds = 0;
    std::int64_t bytes = 0;
  };
  struct Group {
    Transfer fetch = {}, gather = {}, scatter = {};
    std::int64_t values = 0, gradients = 0;  // memory of the whole group, in bytes
  };
  std::vector<Layer> layers = {};
  std::vector<Transfer> boundaries = {};  // at l: a message between layers l and l + 1, either way
  std::vector<Transfer> buckets = {};     // reduce
  std::vector<Group> groups = {};
  Transfer tie = {}, push = {};
  double update = 0;  // seconds
};

// What a step costs one rank.
struct RankCosts {
  struct Memory {
    std::int64_t now = 0, peak = 0;  // bytes
  };
  double end = 0;         // seconds until its last action is done; the sum of the next four
  double computing = 0;   // forward to weight
  double updating = 0;    // the optimiser
  double starved = 0;     // computation waited for messages from other ranks
  double exposed = 0;     // computation waited for its own exchanges, fetches and sends
  double exchanging = 0;  // time that the exchange lane was busy
  Memory activations = {}, values = {}, gradients = {};
  std::map<Purpose, std::int64_t> bytes = {};  // sent bytes

  std::int64_t sent(Purpose purpose) const {
    const auto found = bytes.find(purpose);
    return found == bytes.end() ? 0 : found->second;
  }
};

// An action and its times, in seconds since the step began. For a message, an exchange or a fetch:
// when its lane ran it.
struct TimedAction {
  Action action;
  double begin = 0, end = 0;
};

// `index` is the action's index in the rank's table; `so_far` has the rank's costs up to and
// including it.
using Visitor = std::function<void(int rank, std::size_t index, const TimedAction& timed,
                                   const RankCosts& so_far)>;

// A circle of ranks that wait for each other for ever.
class Deadlock final : public InvalidArgument {
 public:
  struct Wait {
    int rank;
    std::size_t index;  // of the action that cannot run, in the rank's table
    int layer;          // the layer that it waits for
    int rank_of_layer;
  };
  Deadlock(const std::string& what, std::vector<Wait> circle)
      : InvalidArgument(what), circle_(std::move(circle)) {}
  const std::vector<Wait>& circle() const { return circle_; }

 private:
  std::vector<Wait> circle_;
};

// The costs of each rank's table. Each table must be valid by itself (table.h), except that it may
// lack the end of the step. Throws Deadlock, and InvalidArgument if two tables have the same layer
// or a rank waits for a message that is never sent.
std::vector<RankCosts> walk(std::span<const Table> tables, const StepCosts& costs,
                            const Visitor& visit = {});
// The same for a single rank.
RankCosts walk(const Table& table, const StepCosts& costs, const Visitor& visit = {});

}  // namespace echelon
