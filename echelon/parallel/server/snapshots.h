// The values that a parameter server serves: the newest version, and older versions that some
// worker was told to compute on and has not read yet. With several servers, a worker reads from one
// after another while updates continue. Since each server keeps the promised version, the worker
// reads the same version from all of them.
//
// Tensors that were returned are never written, so their holders may keep reading them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "echelon/parallel/server/clock_table.h"

namespace echelon {

class Snapshots {
 public:
  // The values at the start of a job.
  void begin(at::Tensor values, std::int64_t version);
  std::int64_t version() const { return version_; }

  // The parameters to compute a task on, once per task. Undefined if they are no longer kept.
  at::Tensor read(const Task& task);
  // The same for a task that reads in several requests: the values are kept as long as the task is
  // held.
  at::Tensor look(const Task& task) const;

  // The memory of the newest version, to be reused for the next one. Undefined if a worker still
  // reads the newest version or will read it; `held` are the tasks that workers hold. If it is
  // defined, call publish() next, with no read() in between.
  at::Tensor reuse(const std::vector<Task>& held);
  // Publishes the next version. The previous one is kept for tasks in `held` that have not read it.
  void publish(at::Tensor values, const std::vector<Task>& held);

  std::size_t kept() const { return kept_.size(); }  // versions kept for tasks, besides the newest

 private:
  bool may_be_read(const Task& task) const {
    return task.version == version_ && !served_.contains(task.number);
  }

  at::Tensor newest_;
  std::int64_t version_ = 0;
  std::set<std::int64_t> served_;            // numbers of tasks that have read the newest version
  std::map<std::int64_t, at::Tensor> kept_;  // by task number
};

}  // namespace echelon
