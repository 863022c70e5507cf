// Checks whether cached link figures still hold: compares the first large operations of a job with
// the predicted times. An operation may take longer than predicted for many reasons (a late rank),
// but not every time, so the fastest of several counts. Only operations in which every rank
// receives data count: the root of a broadcast is done as soon as its bytes are in the kernel. If
// the fastest is far off, the figures are discarded and the next job measures again. This job keeps
// its plan, so that the same plan gives the same bits; sync.adapt changes it while a job runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "echelon/collective/call.h"
#include "echelon/collective/link_cache.h"

namespace echelon {

class LinkWatch {
 public:
  LinkWatch(LinkCache cache, const Figures& figures);

  // Records an operation of this rank. Thread-safe: several groups may be used concurrently.
  void saw(Operation operation, std::size_t bytes, double seconds, double predicted);
  void retire();  // the links were measured again
  bool done() const { return done_; }

  static constexpr int enough = 8;
  static constexpr std::size_t large = 64 << 10;  // bytes: where beta counts
  static constexpr double far = 3;                // factor by which times may differ

 private:
  LinkCache cache_;
  Figures figures_;
  std::atomic<bool> done_ = false;
  std::mutex mutex_;  // guards the members below
  int seen_ = 0;
  double ratio_ = 0, seconds_ = 0, predicted_ = 0;  // of the fastest so far
  std::size_t bytes_ = 0;
  Operation operation_ = Operation::all_reduce;
};

}  // namespace echelon
