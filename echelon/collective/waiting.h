// Waiting for other ranks: spin for a moment, then yield, then sleep a little longer each time; and
// all along look whether a rank was lost or the deadline has passed.
//
// Spinning is right when every rank has a core of its own; with more ranks than cores it keeps the
// one waited for from running, so there the first thing is to yield.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/health.h"

namespace echelon {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Waiting {
 public:
  struct Patience {
    int spins;   // looks in a tight loop
    int yields;  // looks between which others may run; then sleeps
  };
  // In shared memory a look is a load. Longer spinning would gain nothing: a yield that nobody
  // takes up costs a fraction of a microsecond.
  static constexpr Patience memory(bool spin) { return {spin ? 256 : 0, 1000}; }
  // Over sockets a look is a system call, and a sleep ends when there is something to do.
  static constexpr Patience sockets(bool spin) { return {spin ? 200 : 0, 20}; }

  // `members` are those whose loss ends any wait. `missing` says on whom this one depends, asked
  // only when something is wrong; `what` names it: "all_reduce (sum) of 1000 fp32, tag \"grad\"".
  Waiting(Health& health, const std::vector<int>& members, Deadline deadline, Patience patience,
          const std::function<std::string()>& what)
      : health_(health),
        members_(members),
        deadline_(deadline),
        patience_(patience),
        what_(what),
        changes_(0) {}

  // Until ready() is true. `missing()` gives the ranks that are not there yet; sleep(time) sleeps
  // until it is worth looking again, but no longer than that.
  template <class Ready, class Missing, class Sleep>
  void until(Ready ready, Missing missing, Sleep sleep) {
    for (int i = 0; i < patience_.spins; ++i) {
      if (ready()) return;
      cpu_relax();
    }
    for (std::uint64_t round = 0; !ready(); ++round) {
      if (ended(round)) {
        if (ready()) return;
        fail(missing());
      }
      if (round < std::uint64_t(patience_.yields)) {
        sched_yield();
      } else {
        sleep(pause(round));
      }
    }
  }

  // For loops in which something moves at every turn.
  template <class Missing>
  void busy(std::uint64_t turn, Missing missing) {
    if (turn % 256 == 0 && deadline_.expired()) fail(missing());
  }

  // For loops that cannot be written as one condition: call when nothing moved. The number of calls
  // since something did is `round`.
  template <class Missing, class Sleep>
  void idle(std::uint64_t round, Missing missing, Sleep sleep) {
    if (round < std::uint64_t(patience_.spins)) return cpu_relax();
    round -= std::uint64_t(patience_.spins);
    // What one who left sent before may have come since the caller looked: it looks again first.
    const std::uint64_t known = changes_;
    if (ended(round) && changes_ == known) fail(missing());
    if (round < std::uint64_t(patience_.yields)) {
      sched_yield();
    } else {
      sleep(pause(round));
    }
  }

 private:
  bool ended(std::uint64_t round);
  std::chrono::microseconds pause(std::uint64_t round) const;
  void fail(const std::vector<int>& missing);  // throws if these ranks are gone or it is too late

  Health& health_;
  const std::vector<int>& members_;
  Deadline deadline_;
  Patience patience_;
  const std::function<std::string()>& what_;
  std::uint64_t changes_;  // of the health that was looked at last
};

void sleep_for(std::chrono::microseconds time);

// Sleeps while `word`, in memory shared with its writer, is `seen`, but no longer than `time`.
void sleep_on(std::atomic<std::uint64_t>& word, std::uint64_t seen,
              std::atomic<std::uint32_t>& sleepers, std::chrono::microseconds time);
// After the word was changed. One who falls asleep meanwhile wakes by himself: sleeps are short.
void wake(std::atomic<std::uint64_t>& word, const std::atomic<std::uint32_t>& sleepers);

}  // namespace echelon
