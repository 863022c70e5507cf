// Whether figures that an earlier job measured still hold once this job runs: compares its first
// large operations with what the figures predict. An operation takes longer than predicted for many
// reasons (a rank that comes late), but not every time: the fastest of several counts. Only those
// count after which every rank has heard from others; a broadcast's root is done when its bytes
// lie in the kernel. Where the fastest is far off, the figures are discarded and the next job
// measures again. This one keeps its plan, so that the same plan gives the same bits; sync.adapt
// changes it while a job runs.
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

  // An operation that this rank took part in. Thread-safe: groups work beside each other.
  void saw(Operation operation, std::size_t bytes, double seconds, double predicted);
  void retire();  // the links were measured again
  bool done() const { return done_; }

  static constexpr int enough = 8;
  static constexpr std::size_t large = 64 << 10;  // bytes: where beta counts
  static constexpr double far = 3;                // times as long, or as short

 private:
  LinkCache cache_;
  Figures figures_;
  std::atomic<bool> done_ = false;
  std::mutex mutex_;  // what follows
  int seen_ = 0;
  double ratio_ = 0, seconds_ = 0, predicted_ = 0;  // of the fastest so far
  std::size_t bytes_ = 0;
  Operation operation_ = Operation::all_reduce;
};

}  // namespace echelon
