#include "echelon/net/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

Health::Health(std::vector<std::string> names, std::function<void(int rank)> blamed)
    : names_(std::move(names)),
      tell_blame_(std::move(blamed)),
      states_(names_.size(), State::alive) {}

bool Health::end(Event event, State state) {
  {
    const std::lock_guard lock(mutex_);
    auto& now = states_[std::size_t(event.rank)];
    if (now != State::alive) return false;
    now = state;
    events_.push_back(std::move(event));
  }
  changes_.fetch_add(1, std::memory_order_release);
  return true;
}

bool Health::left(int rank, bool in_error, Cause cause) {
  return end({rank, Event::Kind::left, 0, 0, {}, in_error, std::move(cause)}, State::left);
}

bool Health::lost(int rank, const std::string& how) {
  return end({rank, Event::Kind::lost, 0, 0, fmt::format("{} was lost: {}", name(rank), how)},
             State::lost);
}

// If ranks give up one after another, each because of the previous one, the first is named first.
void Health::failed(int rank, std::uint64_t group, std::uint64_t kind, const std::string& message,
                    Cause cause) {
  const bool for_another = cause.rank >= 0 && kind == kind_of(PeerLost(""));
  {
    const std::lock_guard lock(mutex_);
    events_.push_back({rank, Event::Kind::gave_up, group, kind,
                       for_another
                           ? fmt::format("{}; {} gave up because of it", message, name(rank))
                           : fmt::format("{} gave up: {}", name(rank), message),
                       true, std::move(cause)});
  }
  changes_.fetch_add(1, std::memory_order_release);
}

void Health::waits(int rank, const Wait& wait) {
  {
    const std::lock_guard lock(mutex_);
    Wait& last = waits_[{wait.group, rank}] = wait;
    last.report = wait_reports() + 1;
    wait_reports_.store(last.report, std::memory_order_release);
  }
}

std::map<int, Health::Wait> Health::waits_in(std::uint64_t group) const {
  std::map<int, Wait> found;
  const std::lock_guard lock(mutex_);
  for (auto one = waits_.lower_bound({group, 0}); one != waits_.end() && one->first.first == group;
       ++one)
    found[one->first.second] = one->second;
  return found;
}

void Health::note_blame(int rank, const std::string& message) const {
  blamed_ = {rank, message};
  if (tell_blame_) tell_blame_(rank);
}

void Health::blame(int rank, const std::string& message) {
  const std::lock_guard lock(mutex_);
  note_blame(rank, message);
}

Health::Cause Health::blamed() const {
  const std::lock_guard lock(mutex_);
  return blamed_;
}

void Health::raise(const Event& event) const {
  if (event.what == Event::Kind::left) raise_left(event);
  const bool for_another = event.cause.rank >= 0;
  note_blame(for_another ? event.cause.rank : event.rank,
             for_another ? event.cause.message : event.message);
  if (event.what == Event::Kind::gave_up) throw_kind(event.kind, event.message);
  throw PeerLost(event.message);
}

// The missing rank need not be the one that failed: in a chain of ranks that forward data, each
// misses its neighbour, which left because of its own neighbour. The rank that failed first is
// named first: the one the leaver blames, or else the last rank that was lost before.
void Health::raise_left(const Event& event) const {
  Cause cause = event.cause;
  if (cause.rank < 0) {
    const auto here = std::find_if(events_.rbegin(), events_.rend(),
                                   [&](const Event& one) { return &one == &event; });
    const auto lost = std::find_if(here, events_.rend(),
                                   [](const Event& one) { return one.what == Event::Kind::lost; });
    if (lost != events_.rend()) cause = {lost->rank, lost->message};
  }
  if (cause.rank >= 0) {
    note_blame(cause.rank, cause.message);
    throw PeerLost(fmt::format("{}; {} ended after it", cause.message, name(event.rank)));
  }
  const std::string message =
      event.in_error
          ? fmt::format("{} failed; its own output says why", name(event.rank))
          : fmt::format(
                "{} has ended, and cannot take part any more; it may have left because of "
                "another, as its own output says",
                name(event.rank));
  note_blame(event.rank, message);
  throw PeerLost(message);
}

bool Health::concerns(const Event& event, const std::vector<int>& ranks,
                      std::uint64_t group) const {
  return (event.what != Event::Kind::gave_up || event.group == group) &&
         std::find(ranks.begin(), ranks.end(), event.rank) != ranks.end();
}

void Health::check(const std::vector<int>& ranks, std::uint64_t group) const {
  const std::lock_guard lock(mutex_);
  for (const auto& event : events_)
    if (event.what != Event::Kind::left && concerns(event, ranks, group)) raise(event);
}

void Health::check_present(const std::vector<int>& ranks, std::uint64_t group) const {
  check(ranks, group);
  const std::lock_guard lock(mutex_);
  for (const auto& event : events_)
    if (concerns(event, ranks, group)) raise(event);
}

Health::State Health::state(int rank) const {
  const std::lock_guard lock(mutex_);
  return states_[std::size_t(rank)];
}

namespace {
enum : std::uint64_t { any_error, invalid_argument, corrupt, timeout, peer_lost, refused };
}

std::uint64_t kind_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error)) return invalid_argument;
  if (dynamic_cast<const Corrupt*>(&error)) return corrupt;
  if (dynamic_cast<const Timeout*>(&error)) return timeout;
  if (dynamic_cast<const PeerLost*>(&error)) return peer_lost;
  if (dynamic_cast<const Refused*>(&error)) return refused;
  return any_error;
}

void throw_kind(std::uint64_t kind, const std::string& message) {
  switch (kind) {
    case invalid_argument:
      throw InvalidArgument(message);
    case corrupt:
      throw Corrupt(message);
    case timeout:
      throw Timeout(message);
    case peer_lost:
      throw PeerLost(message);
    case refused:
      throw Refused(message);
    default:
      throw Error(message);
  }
}

}  // namespace echelon
