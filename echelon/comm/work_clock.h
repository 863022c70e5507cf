// Waits for work and adds up the time: how long a step waited, and how long its exchanges ran. On a
// GPU nothing is counted, because the host does not wait there.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>

#include "echelon/comm/work.h"

namespace echelon {

class WorkClock {
 public:
  using Clock = std::chrono::steady_clock;

  // Waits until it is done; on a GPU the current stream waits, not the host.
  void wait(const Work& work, at::Device device) {
    if (device.is_cuda()) return work.follow();
    const auto start = Clock::now();
    work.wait();
    waited_since(start);
    if (const auto span = work.span()) exchanging_ += seconds(span->end - span->begin);
  }
  // Begins an exchange. If the caller waits for it immediately (CommCall::blocking), it may be done
  // before `exchange` returns its Work, which is waiting too.
  template <class Exchange>
  Work begin(const Exchange& exchange, bool blocking, at::Device device) {
    const auto start = Clock::now();
    Work work = exchange();
    if (blocking && !device.is_cuda()) waited_since(start);
    return work;
  }
  // For a call that completes its exchange before it returns.
  void waited_since(Clock::time_point start) { waited_ += seconds(Clock::now() - start); }

  void reset() { waited_ = exchanging_ = 0; }
  double waited() const { return waited_; }          // seconds since reset()
  double exchanging() const { return exchanging_; }  // likewise, whether or not anybody waited
  // The part of the exchanges that overlapped computation.
  double hidden() const { return exchanging_ > waited_ ? exchanging_ - waited_ : 0; }

 private:
  static double seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }
  double waited_ = 0, exchanging_ = 0;
};

}  // namespace echelon
