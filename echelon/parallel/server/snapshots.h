// The values that a parameter server gives out: the newest version, and older ones that a worker
// was told to compute on and has not read yet. With several servers a worker reads from one after
// another while updates go on; since each keeps what was promised, it gets one version of all.
//
// Tensors that are given out are never written: who holds one may go on reading.
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
  // Where a job begins.
  void begin(at::Tensor values, std::int64_t version);
  std::int64_t version() const { return version_; }

  // The parameters that a task is to be computed on, once for each task. Undefined where nobody has
  // them any more.
  at::Tensor read(const Task& task);
  // The same for a task that reads them in several requests: they are kept while it is held.
  at::Tensor look(const Task& task) const;

  // The memory of the newest version, for the next one, where nobody reads it or will: `held` is
  // what workers have in hand. Then publish() must follow, and read() must not come in between.
  // Undefined where it is still needed.
  at::Tensor reuse(const std::vector<Task>& held);
  // The next version. The one before is kept for those of `held` that have not read it.
  void publish(at::Tensor values, const std::vector<Task>& held);

  std::size_t kept() const { return kept_.size(); }  // for tasks, besides the newest

 private:
  bool may_be_read(const Task& task) const {
    return task.version == version_ && !served_.contains(task.number);
  }

  at::Tensor newest_;
  std::int64_t version_ = 0;
  std::set<std::int64_t> served_;            // numbers of tasks that have read the newest
  std::map<std::int64_t, at::Tensor> kept_;  // by number
};

}  // namespace echelon
