// Who works on what, and in which order updates are applied. Pure bookkeeping: no threads, no
// network, no tensors.
//
// Step c of a job is one update from the mean gradient of global batch c. The batch is cut into a
// fixed number of shares; a share is computed by whichever worker asks next, so a slow worker
// takes fewer, and one that dies gives back what it had. The gradient of share (c, j) depends on
// the parameters it was computed on and on nothing else, in particular not on who computed it.
//
// In a synchronous job share j belongs to the j-th worker that came.
//
// A share of step c is handed out while at most `bound` updates before c are missing (SSP, Ho
// et al. 2013: the slowest is at c - S or later), so that a gradient is at most that old when it is
// applied. A task names the version of the parameters that it is to be computed on, the newest when
// it was handed out:
//   bound 0          synchronous: every gradient of step c is of the parameters after c updates
//   bound S          a step is applied when its shares are there, also before an earlier one,
//   unless
//                    a gradient that is still on its way would then be older than S
//   no bound         asynchronous: a step is applied when its shares are there. A further one is
//                    begun while fewer than most_begun are begun and not applied
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace echelon {

// A share as it was handed out to a worker. One that comes back is handed out under a new number.
struct Task {
  std::int64_t clock = 0;    // the step, from 0
  int share = 0;             // the number of shares: values are read; one more: masters are
  std::int64_t number = 0;   // no two have the same, and nobody can guess another's
  std::int64_t version = 0;  // of the parameters to compute on: how many updates they have had
  bool operator==(const Task&) const = default;
};

// A step whose gradients are all there.
struct Complete {
  std::int64_t clock = 0;
  std::vector<Task> shares;
};

class ClockTable {
 public:
  static constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
  // Without a bound: steps that were begun and are not applied. Each worker may hold up one, and
  // the gradients of all its other shares wait.
  static constexpr std::int64_t most_begun = 8;

  enum class Shares { to_whoever_asks, to_each_its_own };

  // Steps [first, end) of `shares` shares each; `first` updates have been applied before.
  ClockTable(int shares, std::int64_t first, std::int64_t end, std::int64_t bound,
             Shares how = Shares::to_whoever_asks);

  // Before anything was handed out: goes on after so many updates.
  void start_at(std::int64_t first);

  int join(const std::string& name);  // a worker's number
  // What this worker is to compute now; nothing while all that may run is taken.
  std::optional<Task> take(int worker);
  // How many updates the parameters would miss that the next task is computed on.
  std::int64_t next_age() const { return returned_.empty() ? next_.clock - version_ : 0; }
  // What this worker may read without computing anything: the newest version. Until it takes the
  // next task or reads again.
  enum class Reads { values, masters };
  Task read(int worker, Reads what = Reads::values);

  // It has, and all owners have its gradient. Throws InvalidArgument for a task it did not have.
  void done(int worker, const Task& task);
  // It is gone: what it had is handed out again.
  void drop(int worker);
  bool alive(int worker) const { return workers_[std::size_t(worker)].alive; }
  int living() const;
  const std::string& name(int worker) const { return workers_[std::size_t(worker)].name; }
  std::optional<Task> task_of(int worker) const { return workers_[std::size_t(worker)].task; }
  // Whether it is to compute or to read this.
  bool has(int worker, const Task& task) const {
    const auto& one = workers_[std::size_t(worker)];
    return one.task == task || one.reads == task;
  }

  // What is applied as this update, counted over `first`; nothing where that is not known yet. Not
  // for updates before version().
  std::optional<Complete> order(std::int64_t update) const;
  void applied();  // the next in order
  // What workers have in hand: the versions that they may still have to read.
  std::vector<Task> held() const;
  std::int64_t version() const { return version_; }

  // No step is begun that has not been, up to this moment; what was begun is finished.
  void stop();
  // Steps that are not complete are given up, and what is still being computed for them is of no
  // use; those that are in order are applied. At most `updates` of them, counted over `first`.
  void abandon(std::int64_t updates = unbounded);
  // No share at or after step `clock` is handed out until this is moved on.
  void hold(std::int64_t clock) { held_ = clock; }
  std::int64_t end() const { return end_; }
  bool finished() const { return version_ >= end_; }

 private:
  struct Worker {
    std::string name;
    bool alive = true;
    std::optional<Task> task, reads;
    std::int64_t next = 0;  // step, where each has its own shares
  };
  bool may_run(std::int64_t clock) const;
  std::optional<Task> fresh(int worker);

  int shares_;
  bool own_shares_;
  bool abandoned_ = false;
  std::int64_t begun_ = 0;  // no step at or after this one has been
  std::int64_t first_, end_, bound_, version_, held_ = unbounded;
  Task next_;
  std::vector<Worker> workers_;
  std::int64_t numbers_ = 0;
  std::int64_t new_number();
  std::deque<Task> returned_;  // of workers that are gone, oldest first
  struct Round {
    std::int64_t given = 0;         // the oldest version that a gradient of it may be of
    std::map<int, Task> done = {};  // by share
  };
  std::map<std::int64_t, Round> rounds_;  // that were begun and are not in order_, by step
  std::deque<Complete> order_;            // from update version_ on
  void release();                         // what may be applied now
};

}  // namespace echelon
