#include "echelon/net/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

Health::Health(std::vector<std::string> names)
    : names_(std::move(names)), states_(names_.size(), State::alive) {}

void Health::end(Event event, State state) {
  {
    const std::lock_guard lock(mutex_);
    auto& now = states_[std::size_t(event.rank)];
    if (now != State::alive) return;  // the first word counts
    now = state;
    events_.push_back(std::move(event));
  }
  changes_.fetch_add(1, std::memory_order_release);
}

void Health::left(int rank) { end({rank, Event::Kind::left, 0, 0, {}}, State::left); }

void Health::lost(int rank, const std::string& how) {
  end({rank, Event::Kind::lost, 0, 0, fmt::format("{} was lost: {}", name(rank), how)},
      State::lost);
}

void Health::failed(int rank, std::uint64_t group, std::uint64_t kind, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back({rank, Event::Kind::gave_up, group, kind,
                       fmt::format("{} gave up: {}", name(rank), message)});
  }
  changes_.fetch_add(1, std::memory_order_release);
}

void Health::waits(int rank, const Wait& wait) {
  {
    const std::lock_guard lock(mutex_);
    waits_[{wait.group, rank}] = wait;
  }
  words_.fetch_add(1, std::memory_order_release);
}

std::map<int, Health::Wait> Health::waits_in(std::uint64_t group) const {
  std::map<int, Wait> found;
  const std::lock_guard lock(mutex_);
  for (auto one = waits_.lower_bound({group, 0}); one != waits_.end() && one->first.first == group;
       ++one)
    found[one->first.second] = one->second;
  return found;
}

void Health::raise(const Event& event) const {
  if (event.what == Event::Kind::gave_up) throw_kind(event.kind, event.message);
  if (event.what == Event::Kind::lost) throw PeerLost(event.message);
  // The rank that is missed here need not be the one that failed: of ranks that pass things on in a
  // row each misses its neighbour, which left because of its own.
  const auto here = std::find_if(events_.rbegin(), events_.rend(),
                                 [&](const Event& one) { return &one == &event; });
  const auto lost = std::find_if(here, events_.rend(),
                                 [](const Event& one) { return one.what == Event::Kind::lost; });
  throw PeerLost(fmt::format("{} has ended, and cannot take part any more; {}", name(event.rank),
                             lost != events_.rend()
                                 ? fmt::format("before it {}", lost->message)
                                 : "it may have left because of another, as its own output says"));
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
