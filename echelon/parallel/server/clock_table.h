// Assigns work to workers and decides the order of updates. Pure bookkeeping: no threads, no
// network, no tensors.
//
// Step c of a job is one update with the mean gradient of global batch c. The batch is cut into a
// fixed number of shares. Whichever worker asks next computes the next share, so a slow worker
// takes fewer shares, and the share of a worker that dies goes to another. The gradient of share
// (c, j) depends only on the parameters it was computed on, not on the worker that computed it.
//
// In a synchronous job, share j belongs to the j-th worker that joined.
//
// A share of step c is handed out while at most `bound` updates before c are missing (SSP, Ho et
// al. 2013: the slowest worker is at c - S or later), so no gradient is older than that when it is
// applied. A task names the version of the parameters to compute on: the newest version when the
// task was handed out.
//   bound 0          synchronous: every gradient of step c is computed on the parameters after c
//                    updates
//   bound S          a step is applied when all its shares have arrived, even before an earlier
//                    step, unless a gradient that is still missing would then be older than S
//   no bound         asynchronous: a step is applied when all its shares have arrived. A new step
//                    is begun while fewer than most_begun steps are begun but not applied
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace echelon {

// A share that was handed out to a worker. A share that is handed out again gets a new number.
struct Task {
  std::int64_t clock = 0;    // the step, from 0
  int share = 0;             // the number of shares: reads values; one more: reads masters
  std::int64_t number = 0;   // unique, and no worker can guess another worker's
  std::int64_t version = 0;  // updates applied to the parameters to compute on
  bool operator==(const Task&) const = default;
};

// A step all of whose gradients have arrived.
struct Complete {
  std::int64_t clock = 0;
  std::vector<Task> shares;
};

class ClockTable {
 public:
  static constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
  // Without a bound: how many steps may be begun but not applied. Each worker may hold up one step,
  // and the gradients of all its other shares wait.
  static constexpr std::int64_t most_begun = 8;

  enum class Shares { to_whoever_asks, to_each_its_own };

  // Steps [first, end) of `shares` shares each; `first` updates were applied before.
  ClockTable(int shares, std::int64_t first, std::int64_t end, std::int64_t bound,
             Shares how = Shares::to_whoever_asks);

  // Continues after `first` updates. Only before the first share is handed out.
  void start_at(std::int64_t first);

  int join(const std::string& name);  // returns the worker's number
  // The next task for this worker; nothing if no task may run now.
  std::optional<Task> take(int worker);
  // How many updates are missing from the parameters that the next task would be computed on.
  std::int64_t next_age() const { return returned_.empty() ? next_.clock - version_ : 0; }
  // Lets this worker read the newest version without computing anything. Valid until it takes the
  // next task or reads again.
  enum class Reads { values, masters };
  Task read(int worker, Reads what = Reads::values);

  // The worker has finished its task, and all owners have its gradient. Throws InvalidArgument if
  // the worker does not hold this task.
  void done(int worker, const Task& task);
  // The worker is gone: its task is handed out again.
  void drop(int worker);
  bool alive(int worker) const { return workers_[std::size_t(worker)].alive; }
  int living() const;
  const std::string& name(int worker) const { return workers_[std::size_t(worker)].name; }
  std::optional<Task> task_of(int worker) const { return workers_[std::size_t(worker)].task; }
  // Whether the worker is to compute or read this task.
  bool has(int worker, const Task& task) const {
    const auto& one = workers_[std::size_t(worker)];
    return one.task == task || one.reads == task;
  }

  // The step that is applied as this update (counted from 0, not from `first`); nothing if that is
  // not decided yet. Not for updates before version().
  std::optional<Complete> order(std::int64_t update) const;
  void applied();  // the next update in the order was applied
  // The tasks that workers hold. Workers may still read the versions that these tasks name.
  std::vector<Task> held() const;
  std::int64_t version() const { return version_; }

  // Begins no new step. Steps that were begun are finished.
  void stop();
  // Gives up steps that are not complete: gradients still being computed for them are not used.
  // Steps already in the order are applied, up to `updates` updates in all (counted from 0, not
  // from `first`).
  void abandon(std::int64_t updates = unbounded);
  // Hands out no share of step `clock` or later until the limit is raised.
  void hold(std::int64_t clock) { held_ = clock; }
  std::int64_t end() const { return end_; }
  bool finished() const { return version_ >= end_; }

 private:
  struct Worker {
    std::string name;
    bool alive = true;
    std::optional<Task> task, reads;
    std::int64_t next = 0;  // step, if each worker has its own shares
  };
  bool may_run(std::int64_t clock) const;
  std::optional<Task> fresh(int worker);

  int shares_;
  bool own_shares_;
  bool abandoned_ = false;
  std::int64_t begun_ = 0;  // steps from this one on were never begun
  std::int64_t first_, end_, bound_, version_, held_ = unbounded;
  Task next_;
  std::vector<Worker> workers_;
  std::int64_t numbers_ = 0;
  std::int64_t new_number();
  std::deque<Task> returned_;  // tasks of workers that are gone, oldest first
  struct Round {
    std::int64_t given = 0;  // the oldest version that any of its gradients may be computed on
    std::map<int, Task> done = {};  // by share
  };
  std::map<std::int64_t, Round> rounds_;  // steps begun and not yet in order_
  std::deque<Complete> order_;            // updates from version_ on
  void release();                         // moves steps that may be applied now to order_
};

}  // namespace echelon
