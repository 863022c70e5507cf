// The known state of the other ranks: updated by the endpoint's thread, read by every waiting call.
//
// A waiting loop polls `changes()` and `wait_reports()`, two atomics, and looks further only when
// one of them has changed. A rank that ends is lost to all groups; a rank that gives up does so in
// one group and continues in the others.
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

// If a rank failed because of another one: which rank failed first, and how.
struct FailureCause {
  int rank = -1;  // -1: none
  std::string message = {};
};

class Health {
 public:
  using Cause = FailureCause;
  enum class State : std::uint8_t {
    alive,
    left,  // said goodbye: it has finished its work
    lost,  // its connection ended without a goodbye
  };

  // A report of a rank that has waited for a while: in which operation of which group, and for
  // which rank. The group defines `call` and `bytes`; they are equal on ranks that make the same
  // call.
  struct Wait {
    std::uint64_t group = 0, number = 0, call = 0, bytes = 0;
    int on = -1;
    std::uint64_t report = 0;  // the value of wait_reports() when it came
  };

  // `names` describe the ranks: "rank 2 on node7 (pid 4711)". `blamed` is called with each rank
  // that an error of this rank names as the one that failed first.
  explicit Health(std::vector<std::string> names, std::function<void(int rank)> blamed = {});

  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  std::uint64_t wait_reports() const { return wait_reports_.load(std::memory_order_acquire); }

  // Throws if one of these ranks is lost (PeerLost) or has given up in this group (its own error):
  // the failure that became known first.
  void check(const std::vector<int>& ranks, std::uint64_t group) const;
  // Like check(), but also throws PeerLost for a rank that has left: for ranks that a wait depends
  // on.
  void check_present(const std::vector<int>& ranks, std::uint64_t group) const;

  State state(int rank) const;
  // The last reported wait of each rank in a group.
  std::map<int, Wait> waits_in(std::uint64_t group) const;
  const std::string& name(int rank) const { return names_[std::size_t(rank)]; }

  // `in_error`: the rank is about to fail; `cause`: the rank it blames. Both return false if the
  // rank was known to have ended: the first report counts.
  bool left(int rank, bool in_error = false, Cause cause = {});
  bool lost(int rank, const std::string& how);
  // `kind` is the error's class as kind_of gives it.
  void failed(int rank, std::uint64_t group, std::uint64_t kind, const std::string& message,
              Cause cause = {});
  void waits(int rank, const Wait& wait);

  // An error of this rank names `rank` as the one that failed first. check() calls it itself.
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
  std::atomic<std::uint64_t> changes_{0}, wait_reports_{0};
  mutable std::mutex mutex_;  // the rest
  std::vector<State> states_;
  std::map<std::pair<std::uint64_t, int>, Wait> waits_;  // by group and rank
  std::vector<Event> events_;                            // in the order in which they became known
  mutable Cause blamed_;
};

// Sends errors between processes: the class as a number, and back.
std::uint64_t kind_of(const std::exception& error);
[[noreturn]] void throw_kind(std::uint64_t kind, const std::string& message);

}  // namespace echelon
