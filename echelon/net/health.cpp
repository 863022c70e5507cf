#include "echelon/net/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

Health::Health(std::vector<std::string> names)
    : names_(std::move(names)), states_(names_.size(), State::alive) {}

void Health::set(Event event) {
  {
    const std::lock_guard lock(mutex_);
    auto& state = states_[std::size_t(event.rank)];
    if (state != State::alive) return;  // the first word counts
    state = event.state;
    events_.push_back(std::move(event));
  }
  changes_.fetch_add(1, std::memory_order_release);
}

void Health::left(int rank) { set({rank, State::left, 0, {}}); }

void Health::lost(int rank, const std::string& how) {
  set({rank, State::lost, 0, fmt::format("{} was lost: {}", name(rank), how)});
}

void Health::failed(int rank, std::uint64_t kind, const std::string& message) {
  set({rank, State::failed, kind, fmt::format("{} gave up: {}", name(rank), message)});
}

void Health::raise(const Event& event) const {
  if (event.state == State::failed) throw_kind(event.kind, event.message);
  if (event.state == State::lost) throw PeerLost(event.message);
  throw PeerLost(fmt::format("{} has ended, and cannot take part any more", name(event.rank)));
}

void Health::check(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  for (const auto& event : events_)
    if (event.state != State::left &&
        std::find(ranks.begin(), ranks.end(), event.rank) != ranks.end())
      raise(event);
}

void Health::check_present(const std::vector<int>& ranks) const {
  check(ranks);
  const std::lock_guard lock(mutex_);
  for (const auto& event : events_)
    if (std::find(ranks.begin(), ranks.end(), event.rank) != ranks.end()) raise(event);
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
