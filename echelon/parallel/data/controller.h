// Chooses the all-reduce algorithm for gradients while a job runs.
//
// After each step, every rank reports how long its reductions took. At the end of each interval,
// all ranks compare the measured time with the prediction of the cost model. The first interval
// gives the ratio of the two, which accounts for what the model leaves out. The links are measured
// again if this first ratio is far from 1 and the link figures come from an earlier job, or if the
// ratio later changes by half. If another algorithm is then predicted to be a tenth cheaper, all
// ranks use it from the next step on. All ranks decide alike, because they decide from the same
// numbers. The sum stays the same to rounding (docs/switching.md).
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
  // `buckets`: their sizes in bytes. `every`: steps per interval. `say` receives every decision, on
  // rank 0.
  SyncController(std::shared_ptr<Communicator> ranks, std::vector<std::size_t> buckets,
                 std::int64_t every, std::function<void(const std::string&)> say);

  // Every rank calls it after each step with the time its reductions took. Returns the algorithm
  // for the next step.
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
  std::vector<double> times_;  // of the steps of this interval
  double ratio_ = 0;           // measured over predicted time at the last decision; 0: none yet
  double before_ = 0;          // reduction time before the last switch; 0: nothing to report
  bool better_ = false;        // the last interval was much faster than expected
  int switches_ = 0;
};

}  // namespace echelon
