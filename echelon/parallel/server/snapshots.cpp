#include "echelon/parallel/server/snapshots.h"

#include <algorithm>
#include <utility>

namespace echelon {

void Snapshots::begin(at::Tensor values, std::int64_t version) {
  newest_ = std::move(values);
  version_ = version;
}

at::Tensor Snapshots::read(const Task& task) {
  if (const auto it = kept_.find(task.number); it != kept_.end()) return kept_.extract(it).mapped();
  if (task.version != version_) return {};
  served_.insert(task.number);
  return newest_;
}

at::Tensor Snapshots::look(const Task& task) const {
  if (const auto it = kept_.find(task.number); it != kept_.end()) return it->second;
  return task.version == version_ ? newest_ : at::Tensor();
}

at::Tensor Snapshots::reuse(const std::vector<Task>& held) {
  const bool needed =
      std::any_of(held.begin(), held.end(), [&](const Task& task) { return may_be_read(task); });
  // Another thread may be sending it.
  if (needed || newest_.use_count() > 1 || newest_.storage().use_count() > 1) return {};
  return std::move(newest_);
}

void Snapshots::publish(at::Tensor values, const std::vector<Task>& held) {
  std::erase_if(kept_, [&](const auto& one) {
    return std::none_of(held.begin(), held.end(),
                        [&](const Task& task) { return task.number == one.first; });
  });
  for (const auto& task : held)
    if (may_be_read(task)) kept_[task.number] = newest_;
  newest_ = std::move(values);
  served_.clear();
  ++version_;
}

}  // namespace echelon
