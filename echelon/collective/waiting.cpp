#include "echelon/collective/waiting.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "echelon/base/error.h"

namespace echelon {

// The clock and the health are looked at now and then: each look costs as much as a yield.
bool Waiting::ended(std::uint64_t round) {
  if (health_.changes() != changes_) {
    changes_ = health_.changes();
    health_.check(members_);
    return true;  // someone left: whether it matters depends on who is missing
  }
  if (changes_ != 0 && round % 64 == 0) return true;
  return (round % 16 == 0 || round >= std::uint64_t(patience_.yields)) && deadline_.expired();
}

std::chrono::microseconds Waiting::pause(std::uint64_t round) const {
  return std::chrono::microseconds(
      std::min<std::uint64_t>(50 * (round - std::uint64_t(patience_.yields) + 1), 2000));
}

void Waiting::fail(const std::vector<int>& missing) {
  health_.check_present(missing);
  if (!deadline_.expired()) return;
  std::string names;
  for (const int rank : missing) names += (names.empty() ? "" : ", ") + health_.name(rank);
  throw Timeout(fmt::format("{} reached its deadline; still waiting for {}", what_(), names));
}

void sleep_for(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

// The kernel compares the lower half of the word, which changes with every step.
void sleep_on(std::atomic<std::uint64_t>& word, std::uint64_t seen,
              std::atomic<std::uint32_t>& sleepers, std::chrono::microseconds time) {
  const timespec limit = {0, long(time.count()) * 1000};
  sleepers.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAIT, std::uint32_t(seen), &limit, nullptr, 0);
  sleepers.fetch_sub(1);
}

void wake(std::atomic<std::uint64_t>& word, const std::atomic<std::uint32_t>& sleepers) {
  if (sleepers.load(std::memory_order_relaxed) != 0)
    syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

}  // namespace echelon
