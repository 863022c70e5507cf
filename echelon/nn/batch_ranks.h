// The ranks that have the parts of a batch, and what layers exchange with them whose output depends
// on all its samples, such as batch norm. Trainers give it to Layer::share_batch.
//
// All ranks must make the same calls in the same order. Errors are the communicator's. The executor
// counts the time of these calls as communication, not as computation.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "echelon/comm/work_clock.h"

namespace echelon {

class Communicator;

class BatchRanks {
 public:
  explicit BatchRanks(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}
  // Stands in for `copies` ranks that all have this rank's samples, and exchanges nothing: for
  // measuring a layer on one rank.
  explicit BatchRanks(int copies) : copies_(copies) {}

  int size() const;
  // The vectors of all ranks, [ranks, elements], in rank order. `tag` is for the ledger.
  at::Tensor gather(const at::Tensor& mine, const std::string& tag);
  void sum(const at::Tensor& values, const std::string& tag);  // in place

  void begin_step() { clock_.reset(); }
  const WorkClock& clock() const { return clock_; }  // since begin_step

 private:
  template <class Exchange>
  void wait(const Exchange& exchange, const at::Tensor& tensor);

  std::shared_ptr<Communicator> ranks_;  // null: a stand-in
  int copies_ = 1;
  WorkClock clock_;
};

}  // namespace echelon
