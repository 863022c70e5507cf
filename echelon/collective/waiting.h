// Waiting for other ranks: spins for a moment, then yields, then sleeps, a little longer each time.
// Meanwhile it checks whether a rank was lost or the deadline has passed.
//
// After half a second (or a third of its time, if that is less) the wait is reported to the other
// ranks of the group. So ranks that wait for each other in different calls find out, and the error
// at the deadline can say which rank waits for which, and which has not made the call at all.
//
// Spinning is right if every rank has a core of its own. With more ranks than cores it would keep
// the rank that is waited for from running, so the wait begins with yields.
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
    int spins;   // checks in a tight loop
    int yields;  // checks with a sched_yield() in between; then it sleeps
  };
  // In shared memory a check is a load. Longer spinning would gain nothing: a yield with no other
  // runnable thread costs a fraction of a microsecond.
  static constexpr Patience memory(bool spin) { return {spin ? 256 : 0, 1000}; }
  // Over sockets a check is a system call, and a sleep ends when there is something to do.
  static constexpr Patience sockets(bool spin) { return {spin ? 200 : 0, 20}; }

  // The loss of one of `members` ends any wait. `what` describes the operation in errors:
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

  // Waits until ready() is true. `missing(all)` returns the ranks that are still missing: all of
  // them, or those that will not come any more once they have left. sleep(time) sleeps until
  // another check is worthwhile, but no longer than `time`.
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

  // For loops that make progress at every turn.
  template <class Missing>
  void busy(std::uint64_t turn, Missing missing) {
    if (turn % 256 == 0 && deadline_.expired()) act(Look::deadline, missing);
  }

  // For loops that cannot be written as one condition: call it when there was no progress. `round`
  // is the number of calls since the last progress.
  template <class Missing, class Sleep>
  void idle(std::uint64_t round, Missing missing, Sleep sleep) {
    if (round < std::uint64_t(patience_.spins)) return cpu_relax();
    round -= std::uint64_t(patience_.spins);
    // Messages that a rank sent before it left may have arrived since: let the caller check again.
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
  void compare();  // throws if another rank waits in a different call
  [[noreturn]] void fail(const std::vector<int>& missing);
  std::vector<int> chain(int rank, const std::map<int, Health::Wait>& waits) const;

  Endpoint& endpoint_;
  const std::vector<int>& members_;
  Deadline deadline_;
  Place place_;
  Patience patience_;
  const std::function<std::string()>& what_;
  std::uint64_t changes_ = 0;  // Health::changes() at the last check
  const std::uint64_t reports_at_start_;
  std::uint64_t reports_;  // at the last check; older ones are compared by the ranks that sent them
  std::optional<Deadline::Clock::time_point> tells_at_ = {};
  Deadline::Clock::duration silence_ = {};  // between two reports
};

void sleep_for(std::chrono::microseconds time);

// Sleeps while `word`, in shared memory, equals `seen`, but no longer than `time`.
void sleep_on(std::atomic<std::uint64_t>& word, std::uint64_t seen,
              std::atomic<std::uint32_t>& sleepers, std::chrono::microseconds time);
// Call after changing the word. A rank that falls asleep meanwhile wakes up soon: sleeps are short.
void wake(std::atomic<std::uint64_t>& word, const std::atomic<std::uint32_t>& sleepers);

}  // namespace echelon
