// What is known of the other ranks: kept by the endpoint's thread, read by everyone who waits.
//
// A waiting loop looks at `changes()` and `words()`, two atomics, and asks further only when one
// has moved. A rank that ends is gone for everybody; one that gives up does so in one group, and
// goes on in others.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace echelon {

// Why a rank failed, where it was not by itself: which rank failed first, and how.
struct FailureCause {
  int rank = -1;  // -1: none
  std::string message = {};
};

class Health {
 public:
  using Cause = FailureCause;
  enum class State : std::uint8_t {
    alive,
    left,  // said goodbye: what it had to do is done
    lost,  // its connection ended without a word
  };

  // A rank that has waited for a while says so: in which operation of which group, and for whom.
  // What `call` and `bytes` mean is the group's affair; they are equal where ranks agree.
  struct Wait {
    std::uint64_t group = 0, number = 0, call = 0, bytes = 0;
    int on = -1;
    std::uint64_t word = 0;  // which of words() said so
  };

  // `names` say who a rank is: "rank 2 on node7 (pid 4711)". `blamed` is called with each rank that
  // an error of ours names as the one that failed first.
  explicit Health(std::vector<std::string> names, std::function<void(int rank)> blamed = {});

  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  std::uint64_t words() const { return words_.load(std::memory_order_acquire); }  // about waits

  // Throws when one of these ranks is lost (PeerLost) or has given up in this group (what it said):
  // the cause that became known first.
  void check(const std::vector<int>& ranks, std::uint64_t group) const;
  // The same, and PeerLost for one that has left: for the ranks that a wait cannot do without.
  void check_present(const std::vector<int>& ranks, std::uint64_t group) const;

  State state(int rank) const;
  // The last waits in a group that ranks told of.
  std::map<int, Wait> waits_in(std::uint64_t group) const;
  const std::string& name(int rank) const { return names_[std::size_t(rank)]; }

  // `in_error`: it is about to fail; `cause`: because of another rank, as it says.
  // Both give whether it is news: of a rank that has ended already the first word counts.
  bool left(int rank, bool in_error = false, Cause cause = {});
  bool lost(int rank, const std::string& how);
  // `kind` is the error's class as kind_of gives it.
  void failed(int rank, std::uint64_t group, std::uint64_t kind, const std::string& message,
              Cause cause = {});
  void waits(int rank, const Wait& wait);

  // An error of ours names this rank as the one that failed first. check() does it by itself.
  void blame(int rank, const std::string& message);
  Cause blamed() const;  // the last

 private:
  struct Event {
    int rank;
    enum class Kind : std::uint8_t { left, lost, gave_up } what;
    std::uint64_t group;  // in which it gave up
    std::uint64_t kind;
    std::string message;
    bool in_error = false;
    Cause cause = {};
  };
  bool end(Event event, State state);
  bool concerns(const Event& event, const std::vector<int>& ranks, std::uint64_t group) const;
  [[noreturn]] void raise(const Event& event) const;
  [[noreturn]] void raise_left(const Event& event) const;
  void note_blame(int rank, const std::string& message) const;

  std::vector<std::string> names_;
  std::function<void(int rank)> tell_blame_;
  std::atomic<std::uint64_t> changes_{0}, words_{0};
  mutable std::mutex mutex_;  // the rest
  std::vector<State> states_;
  std::map<std::pair<std::uint64_t, int>, Wait> waits_;  // by group and rank
  std::vector<Event> events_;                            // in the order they became known
  mutable Cause blamed_;
};

// Errors across processes: the class as a number, and back.
std::uint64_t kind_of(const std::exception& error);
[[noreturn]] void throw_kind(std::uint64_t kind, const std::string& message);

}  // namespace echelon
