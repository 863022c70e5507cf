// What is known of the other ranks: kept by the endpoint's thread, read by everyone who waits.
//
// A waiting loop looks at `changes()`, one atomic, and asks further only when it has moved.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace echelon {

class Health {
 public:
  enum class State : std::uint8_t {
    alive,
    left,    // said goodbye: what it had to do is done
    lost,    // its connection ended without a word
    failed,  // told us that it gave up, and why
  };

  // `names` say who a rank is: "rank 2 on node7 (pid 4711)".
  explicit Health(std::vector<std::string> names);

  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

  // Throws when one of these ranks is lost (PeerLost) or has failed (what it said), the first cause
  // that became known first.
  void check(const std::vector<int>& ranks) const;
  // The same, and PeerLost for one that has left: for the ranks that a wait cannot do without.
  void check_present(const std::vector<int>& ranks) const;

  State state(int rank) const;
  const std::string& name(int rank) const { return names_[std::size_t(rank)]; }

  void left(int rank);
  void lost(int rank, const std::string& how);
  // `kind` is the error's class as kind_of gives it.
  void failed(int rank, std::uint64_t kind, const std::string& message);

 private:
  struct Event {
    int rank;
    State state;
    std::uint64_t kind;
    std::string message;
  };
  void set(Event event);
  [[noreturn]] void raise(const Event& event) const;

  std::vector<std::string> names_;
  std::atomic<std::uint64_t> changes_{0};
  mutable std::mutex mutex_;  // states_ and events_
  std::vector<State> states_;
  std::vector<Event> events_;  // in the order they became known
};

// Errors across processes: the class as a number, and back.
std::uint64_t kind_of(const std::exception& error);
[[noreturn]] void throw_kind(std::uint64_t kind, const std::string& message);

}  // namespace echelon
