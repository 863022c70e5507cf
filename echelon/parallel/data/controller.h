// Chooses, while a job runs, by which algorithm its gradients are reduced.
//
// Every rank tells it each step how long reducing took; at intervals all compare what was measured
// with what the cost model predicts. The first interval gives the ratio of the two: what the model
// does not know. If it is far from 1 and an earlier job measured the links, or if later the ratio
// has moved by half, the links are not what they were, and are measured again. If another algorithm
// is then predicted to be a tenth cheaper, all ranks take it from the next step on. All decide the
// same, from the same numbers; the sum is the same to rounding (docs/switching.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/comm/communicator.h"

namespace echelon {

class SyncController {
 public:
  // `buckets`: their bytes. `every`: steps of an interval. `say` gets every decision, on rank 0.
  SyncController(std::shared_ptr<Communicator> ranks, std::vector<std::size_t> buckets,
                 std::int64_t every, std::function<void(const std::string&)> say);

  // After each step, on all ranks: how long its reductions ran. Gives the algorithm of the next.
  Algorithm after_step(std::int64_t step, double reducing_seconds);

  Algorithm algorithm() const { return algorithm_; }
  int switches() const { return switches_; }

 private:
  double predicted(Algorithm algorithm) const;
  Algorithm cheapest() const;
  void decide(std::int64_t step, double measured);

  std::shared_ptr<Communicator> ranks_;
  std::vector<std::size_t> buckets_;
  std::int64_t every_;
  std::function<void(const std::string&)> say_;
  Algorithm algorithm_ = Algorithm::automatic;
  std::vector<double> times_;  // of this interval
  double ratio_ = 0;           // measured over predicted, when things were last settled; 0: not yet
  double before_ = 0;          // what reducing took before the last switch; 0: told already
  bool better_ = false;        // the last interval was much faster than expected
  int switches_ = 0;
};

}  // namespace echelon
