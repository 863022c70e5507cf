// Waiting for other ranks: spin for a moment, then yield, then sleep a little longer each time; and
// all along look whether a rank was lost or the deadline has passed.
//
// After half a second (or a third of its time, if that is less) the wait is told to the other ranks
// of the group. So ranks that wait for each other in different calls find out, and at the deadline
// it is known who waits for whom, and who has not come at all.
//
// Spinning is right when every rank has a core of its own; with more ranks than cores it keeps the
// one waited for from running, so there the first thing is to yield.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/collective/call.h"
#include "echelon/net/endpoint.h"

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

  // `members` are those whose loss ends any wait; `what` names it for an error:
  // "all_reduce (sum) of 1000 fp32, tag \"grad\"".
  Waiting(Endpoint& endpoint, const std::vector<int>& members, Deadline deadline,
          const Place& place, Patience patience, const std::function<std::string()>& what)
      : endpoint_(endpoint),
        members_(members),
        deadline_(deadline),
        place_(place),
        patience_(patience),
        what_(what),
        reports_at_start_(endpoint.health().wait_reports()),
        reports_(reports_at_start_) {}

  // Throws if a member is lost or has given up.
  void check() const { endpoint_.health().check(members_, place_.wait.group); }

  // Until ready() is true. `missing(all)` gives the ranks that are not there yet: all of them, or
  // those whose leaving means that they will not come. sleep(time) sleeps until it is worth looking
  // again, but no longer than that.
  template <class Ready, class Missing, class Sleep>
  void until(Ready ready, Missing missing, Sleep sleep) {
    for (int i = 0; i < patience_.spins; ++i) {
      if (ready()) return;
      cpu_relax();
    }
    for (std::uint64_t round = 0; !ready(); ++round) {
      const Look seen = look(round);
      if (seen != Look::nothing && ready()) return;
      act(seen, missing);
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
    if (turn % 256 == 0 && deadline_.expired()) act(Look::deadline, missing);
  }

  // For loops that cannot be written as one condition: call when nothing moved. The number of calls
  // since something did is `round`.
  template <class Missing, class Sleep>
  void idle(std::uint64_t round, Missing missing, Sleep sleep) {
    if (round < std::uint64_t(patience_.spins)) return cpu_relax();
    round -= std::uint64_t(patience_.spins);
    // What one who left sent before may have come since the caller looked: it looks again first.
    const std::uint64_t known = changes_;
    const Look seen = look(round);
    if (changes_ == known) act(seen, missing);
    if (round < std::uint64_t(patience_.yields)) {
      sched_yield();
    } else {
      sleep(pause(round));
    }
  }

 private:
  enum class Look { nothing, someone_left, long_wait, deadline };
  Look look(std::uint64_t round);
  template <class Missing>
  void act(Look seen, Missing missing) {
    if (seen == Look::nothing) return;
    if (seen == Look::long_wait) return tell(missing(true));
    endpoint_.health().check_present(missing(seen == Look::deadline), place_.wait.group);
    if (seen == Look::deadline) fail(missing(true));
  }
  std::chrono::microseconds pause(std::uint64_t round) const;
  void tell(const std::vector<int>& missing);
  void compare();  // throws if another rank waits in another call
  [[noreturn]] void fail(const std::vector<int>& missing);
  std::vector<int> chain(int rank, const std::map<int, Health::Wait>& waits) const;

  Endpoint& endpoint_;
  const std::vector<int>& members_;
  Deadline deadline_;
  Place place_;
  Patience patience_;
  const std::function<std::string()>& what_;
  std::uint64_t changes_ = 0;  // of the health that was looked at last
  const std::uint64_t reports_at_start_;
  std::uint64_t reports_;  // seen last; older ones are compared by those who told them
  std::optional<Deadline::Clock::time_point> tells_at_ = {};
  Deadline::Clock::duration silence_ = {};  // between two words
};

void sleep_for(std::chrono::microseconds time);

// Sleeps while `word`, in memory shared with its writer, is `seen`, but no longer than `time`.
void sleep_on(std::atomic<std::uint64_t>& word, std::uint64_t seen,
              std::atomic<std::uint32_t>& sleepers, std::chrono::microseconds time);
// After the word was changed. One who falls asleep meanwhile wakes by himself: sleeps are short.
void wake(std::atomic<std::uint64_t>& word, const std::atomic<std::uint32_t>& sleepers);

}  // namespace echelon
