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
namespace {
constexpr Deadline::Clock::duration first_word = std::chrono::milliseconds(500),
                                    next_word = std::chrono::seconds(1);
}

// The clock and the health are looked at now and then: each look costs as much as a yield.
Waiting::Look Waiting::look(std::uint64_t round) {
  const Health& health = endpoint_.health();
  if (health.changes() != changes_) {
    changes_ = health.changes();
    check();
    compare();
    return Look::someone_left;  // perhaps: whether it matters depends on who is missing
  }
  const bool sleeps = round >= std::uint64_t(patience_.yields);
  if (sleeps || round % 16 == 0) {
    const auto now = Deadline::Clock::now();
    if (deadline_.expired()) return Look::deadline;
    if (!sleeps) {
      tells_at_.reset();
    } else if (!tells_at_) {
      tells_at_ = now + std::min(first_word, deadline_.remaining() / 3);
    } else if (now >= *tells_at_) {
      tells_at_ = now + next_word;
      return Look::long_wait;
    }
  }
  return changes_ != 0 && round % 64 == 0 ? Look::someone_left : Look::nothing;
}

std::chrono::microseconds Waiting::pause(std::uint64_t round) const {
  return std::chrono::microseconds(
      std::min<std::uint64_t>(50 * (round - std::uint64_t(patience_.yields) + 1), 2000));
}

void Waiting::tell(const std::vector<int>& missing) {
  if (place_.tell.empty()) return;
  place_.wait.on = missing.empty() ? endpoint_.rank() : missing.front();
  endpoint_.tell_wait({place_.tell.begin(), place_.tell.end()}, place_.wait);
}

void Waiting::compare() {
  for (const int rank : place_.tell) {
    const auto theirs = endpoint_.health().wait_of(rank);
    if (!theirs || theirs->group != place_.wait.group || place_.recent.empty()) continue;
    const Health::Wait& mine = place_.recent[theirs->number % place_.recent.size()];
    if (theirs->number != mine.number || (theirs->call == mine.call && theirs->bytes == mine.bytes))
      continue;
    throw InvalidArgument(fmt::format("ranks disagree: {} called {}, this rank (rank {}) {}",
                                      endpoint_.health().name(rank),
                                      describe_bytes(theirs->call, theirs->bytes), endpoint_.rank(),
                                      describe_bytes(mine.call, mine.bytes)));
  }
}

// ", which waits for rank 2 on …, which …": as far as they have told.
std::string Waiting::chain(int rank) const {
  std::string text;
  for (std::size_t links = 0; links < members_.size(); ++links) {
    const auto wait = endpoint_.health().wait_of(rank);
    if (!wait || wait->group != place_.wait.group || wait->number != place_.wait.number ||
        wait->on == endpoint_.rank() || wait->on == rank)
      break;
    rank = wait->on;
    text += fmt::format(", which waits for {}", endpoint_.health().name(rank));
  }
  return text;
}

void Waiting::fail(const std::vector<int>& missing) {
  std::string names;
  for (const int rank : missing)
    names += (names.empty() ? "" : ", ") + endpoint_.health().name(rank) + chain(rank);
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
