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
constexpr Deadline::Clock::duration first_report = std::chrono::milliseconds(500),
                                    longest_silence = std::chrono::seconds(30);
}

// Reads the clock only now and then, because a read costs as much as a yield.
Waiting::Look Waiting::look(std::uint64_t round) {
  const Health& health = endpoint_.health();
  if (health.wait_reports() != reports_) {
    reports_ = health.wait_reports();
    compare();
  }
  if (health.changes() != changes_) {
    changes_ = health.changes();
    check();
    return Look::someone_left;  // whether it matters depends on the missing ranks
  }
  const bool sleeps = round >= std::uint64_t(patience_.yields);
  if (sleeps || round % 16 == 0) {
    const auto left = deadline_.remaining();
    if (left == Deadline::Clock::duration::zero()) return Look::deadline;
    // The time counts from the first check: on a busy machine the yields may take seconds.
    if (round == 0) tells_at_.reset();
    if (const auto now = Deadline::Clock::now(); !tells_at_) {
      silence_ = std::min(first_report, left / 3);
      tells_at_ = now + silence_;
    } else if (now >= *tells_at_) {
      silence_ = std::min(2 * silence_, longest_silence);
      tells_at_ = now + silence_;
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
  if (!missing.empty()) endpoint_.ask_after(missing.front());
  if (place_.tell.empty()) return;
  place_.wait.on = missing.empty() ? endpoint_.rank() : missing.front();
  endpoint_.tell_wait({place_.tell.begin(), place_.tell.end()}, place_.wait);
}

void Waiting::compare() {
  if (place_.recent.empty()) return;
  const auto algorithm = [](std::uint64_t call) { return call >> 8 & 0xff; };
  for (const auto& [rank, theirs] : endpoint_.health().waits_in(place_.wait.group)) {
    const Health::Wait& mine = place_.recent[theirs.number % place_.recent.size()];
    if (theirs.number != mine.number) continue;
    // One rank may name the algorithm that the other chose automatically.
    const bool free = algorithm(theirs.call) == 0 || algorithm(mine.call) == 0;
    const std::uint64_t compared = free ? ~std::uint64_t{0xff00} : ~std::uint64_t{0};
    if (((theirs.call ^ mine.call) & compared) == 0 && theirs.bytes == mine.bytes) continue;
    throw InvalidArgument(disagreement(endpoint_.health().name(rank), theirs.call, theirs.bytes,
                                       endpoint_.rank(), mine.call, mine.bytes));
  }
}

// The chain of ranks that wait for each other, starting with the rank that this one waits for, as
// far as they have reported. A rank may still be in an earlier call: reports from before this wait
// began are outdated.
std::vector<int> Waiting::chain(int rank, const std::map<int, Health::Wait>& waits) const {
  const auto counts = [&](const Health::Wait& wait) {
    return wait.number == place_.wait.number ||
           (wait.number < place_.wait.number && wait.report > reports_at_start_);
  };
  std::vector<int> named = {endpoint_.rank(), rank};
  for (auto wait = waits.find(rank); wait != waits.end() && counts(wait->second);
       wait = waits.find(wait->second.on)) {
    const int next = wait->second.on;
    if (std::find(named.begin(), named.end(), next) != named.end()) break;
    named.push_back(next);
  }
  return {named.begin() + 1, named.end()};
}

void Waiting::fail(const std::vector<int>& missing) {
  const auto waits = endpoint_.health().waits_in(place_.wait.group);
  std::string names;
  int last = -1;
  for (const int rank : missing) {
    const auto chained = chain(rank, waits);
    for (std::size_t i = 0; i < chained.size(); ++i) {
      const bool earlier = i > 0 && waits.at(chained[i - 1]).number < place_.wait.number;
      names += (names.empty() ? ""
                : i == 0      ? ", "
                : earlier     ? ", which in an earlier call waited for "
                              : ", which waits for ") +
               endpoint_.health().name(chained[i]);
    }
    if (last < 0) last = chained.back();
  }
  const auto message = fmt::format("{} reached its deadline; still waiting for {}", what_(), names);
  if (last >= 0) endpoint_.health().blame(last, message);
  throw Timeout(message);
}

void sleep_for(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

// The kernel compares the lower half of the word, which changes at every step.
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
