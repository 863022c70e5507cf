// Waiting for other ranks: spin for a moment, then yield, then sleep a little longer each time; and
// all along look whether a rank was lost or the deadline has passed.
//
// Spinning is right when every rank has a core of its own; with more ranks than cores it keeps the
// one waited for from running, so there the first thing is to yield.
#pragma once

#include <sched.h>

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
  static constexpr int spins = 2000;   // some tens of microseconds
  static constexpr int yields = 1000;  // some hundreds more, when nobody else wants the core

  // `members` are those whose loss ends any wait. `missing` says on whom this one depends, asked
  // only when something is wrong; `what` names it: "all_reduce (sum) of 1000 fp32, tag \"grad\"".
  Waiting(Health& health, const std::vector<int>& members, Deadline deadline, bool spin,
          const std::function<std::string()>& what)
      : health_(health),
        members_(members),
        deadline_(deadline),
        spin_(spin),
        what_(what),
        changes_(0) {}

  // Until ready() is true. `missing()` gives the ranks that are not there yet; sleep(time) sleeps
  // until it is worth looking again, but no longer than that.
  template <class Ready, class Missing, class Sleep>
  void until(Ready ready, Missing missing, Sleep sleep) {
    if (spin_) {
      for (int i = 0; i < spins; ++i) {
        if (ready()) return;
        cpu_relax();
      }
    }
    for (std::uint64_t round = 0; !ready(); ++round) {
      if (ended(round)) {
        if (ready()) return;
        fail(missing());
      }
      if (round < yields) {
        sched_yield();
      } else {
        sleep(pause(round));
      }
    }
  }

  // For loops that cannot be written as one condition: call when nothing moved. The number of calls
  // since something did is `round`.
  template <class Missing, class Sleep>
  void idle(std::uint64_t round, Missing missing, Sleep sleep) {
    if (spin_ && round < spins) return cpu_relax();
    if (ended(round)) fail(missing());
    if (round < spins + yields) {
      sched_yield();
    } else {
      sleep(pause(round - spins));
    }
  }

 private:
  bool ended(std::uint64_t round);
  static std::chrono::microseconds pause(std::uint64_t round);
  void fail(const std::vector<int>& missing);  // throws if these ranks are gone or it is too late

  Health& health_;
  const std::vector<int>& members_;
  Deadline deadline_;
  bool spin_;
  const std::function<std::string()>& what_;
  std::uint64_t changes_;  // of the health that was looked at last
};

void sleep_for(std::chrono::microseconds time);

}  // namespace echelon
