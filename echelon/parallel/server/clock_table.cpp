#include "echelon/parallel/server/clock_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "echelon/base/error.h"

namespace echelon {

ClockTable::ClockTable(int shares, std::int64_t first, std::int64_t end, std::int64_t bound,
                       Shares how)
    : shares_(shares),
      own_shares_(how == Shares::to_each_its_own),
      begun_(first),
      first_(first),
      end_(end),
      bound_(bound),
      version_(first),
      next_{first, 0} {}

void ClockTable::start_at(std::int64_t first) {
  first_ = version_ = begun_ = first;
  next_ = {first, 0};
  for (auto& worker : workers_) worker.next = first;
}

// Servers other than the first identify a task by its number alone. A worker that could guess
// another worker's number could push a gradient in its place.
std::int64_t ClockTable::new_number() {
  static thread_local std::random_device device;
  return (numbers_++ << 32) | std::int64_t(std::uint32_t(device()));
}

int ClockTable::join(const std::string& name) {
  workers_.push_back({name, true, {}, {}, first_});
  return static_cast<int>(workers_.size()) - 1;
}

bool ClockTable::may_run(std::int64_t clock) const {
  return !abandoned_ && clock < std::min(end_, held_) &&
         (bound_ == unbounded || clock <= version_ + bound_);
}

std::optional<Task> ClockTable::take(int worker) {
  auto& mine = workers_[std::size_t(worker)];
  if (mine.task)
    throw InvalidArgument(
        fmt::format("{} asked for work before it was done with share {} of step {}", mine.name,
                    mine.task->share, mine.task->clock + 1));
  mine.reads.reset();
  if (!returned_.empty()) {
    mine.task = returned_.front();
    returned_.pop_front();
  } else if (const auto task = fresh(worker)) {
    mine.task = task;
    if (task->clock >= begun_) {
      rounds_[task->clock] = {version_};
      begun_ = task->clock + 1;
    }
  }
  if (mine.task) {
    mine.task->number = new_number();
    mine.task->version = version_;
  }
  return mine.task;
}

Task ClockTable::read(int worker, Reads what) {
  auto& mine = workers_[std::size_t(worker)];
  mine.reads = Task{version_, shares_ + (what == Reads::masters ? 1 : 0), new_number(), version_};
  return *mine.reads;
}

std::optional<Task> ClockTable::fresh(int worker) {
  auto& mine = workers_[std::size_t(worker)];
  if (own_shares_)
    return worker < shares_ && may_run(mine.next) ? std::optional(Task{mine.next++, worker})
                                                  : std::nullopt;
  if (!may_run(next_.clock)) return {};
  if (bound_ == unbounded && next_.share == 0 &&
      std::ssize(rounds_) + std::ssize(order_) >= most_begun)
    return {};
  const Task task = next_;
  if (++next_.share == shares_) next_ = {next_.clock + 1, 0};
  return task;
}

void ClockTable::done(int worker, const Task& task) {
  auto& mine = workers_[std::size_t(worker)];
  if (mine.task != task)
    throw InvalidArgument(
        fmt::format("{} says it is done with share {} of step {}, which it did not have", mine.name,
                    task.share, task.clock + 1));
  mine.task.reset();
  if (abandoned_) return;
  rounds_.at(task.clock).done[task.share] = task;
  release();
}

// Among complete steps, the one with the oldest gradients is applied first. No step is applied if
// the remaining steps could then not all be applied within the bound.
void ClockTable::release() {
  for (;;) {
    const auto older = [](const auto& a, const auto& b) { return a.second.given < b.second.given; };
    auto ready = rounds_.end();
    for (auto it = rounds_.begin(); it != rounds_.end(); ++it)
      if (std::ssize(it->second.done) == shares_ && (ready == rounds_.end() || older(*it, *ready)))
        ready = it;
    if (ready == rounds_.end()) return;
    const std::int64_t after = version_ + std::ssize(order_) + 1;  // the version once it is applied
    // The remaining steps follow one at a time, oldest first. Each must then still be within the
    // bound.
    std::vector<std::int64_t> rest;
    for (auto it = rounds_.begin(); it != rounds_.end(); ++it)
      if (it != ready) rest.push_back(it->second.given);
    std::sort(rest.begin(), rest.end());
    for (std::size_t i = 0; i < rest.size() && bound_ != unbounded; ++i)
      if (after + std::int64_t(i) - rest[i] > bound_) return;
    Complete complete{ready->first, {}};
    for (const auto& [share, task] : ready->second.done) complete.shares.push_back(task);
    order_.push_back(std::move(complete));
    rounds_.erase(ready);
  }
}

void ClockTable::drop(int worker) {
  auto& mine = workers_[std::size_t(worker)];
  mine.alive = false;
  mine.reads.reset();
  if (!mine.task) return;
  const Task task = *mine.task;
  mine.task.reset();
  const auto place = std::find_if(returned_.begin(), returned_.end(),
                                  [&](const Task& other) { return other.clock > task.clock; });
  returned_.insert(place, task);
}

int ClockTable::living() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& one) { return one.alive; }));
}

std::optional<Complete> ClockTable::order(std::int64_t update) const {
  const auto index = update - version_;
  return index >= 0 && index < std::ssize(order_) ? std::optional(order_[std::size_t(index)])
                                                  : std::nullopt;
}

void ClockTable::applied() {
  order_.pop_front();
  ++version_;
}

std::vector<Task> ClockTable::held() const {
  std::vector<Task> all;
  for (const auto& worker : workers_)
    for (const auto& task : {worker.task, worker.reads})
      if (task) all.push_back(*task);
  return all;
}

void ClockTable::abandon(std::int64_t updates) {
  abandoned_ = true;
  rounds_.clear();
  returned_.clear();
  end_ = std::min({end_, updates, version_ + std::ssize(order_)});
}

void ClockTable::stop() { end_ = std::min(end_, begun_); }

}  // namespace echelon
