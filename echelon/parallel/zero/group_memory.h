// The pooled memory of parameter groups (ZeRO-2 and 3): a group's values hold memory from gather to
// reshard, its gradients from alloc_grads until their reduce-scatter is done. ZeroShards uses it
// with tensors. The memory forecast uses it with sizes, and counts the allocations
// (pooled_bytes.h).
#pragma once

#include <ATen/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "echelon/parallel/zero/buffer_pool.h"
#include "echelon/step/shards.h"

namespace echelon {

// Memory has numel() and scalar_type(): it is a tensor, or only the description of one.
template <class Memory>
class GroupMemory {
 public:
  using Make = std::function<Memory(std::int64_t numel, at::ScalarType type)>;

  // `numels` and `type` describe the groups. With `fp32_sums`, gradients are widened before the
  // reduce-scatter.
  GroupMemory(const std::vector<std::int64_t>& numels, at::ScalarType type, bool fp32_sums,
              Make make)
      : type_(type), fp32_sums_(fp32_sums), make_(std::move(make)) {
    groups_.resize(numels.size());
    for (std::size_t g = 0; g < numels.size(); ++g) groups_[g].numel = numels[g];
  }

  // Takes memory for the values, until reshard.
  const Memory& gather(int group) { return of(group).values = take(group, type_); }
  void reshard(int group) { pool_.give_back(std::exchange(of(group).values, {})); }

  // The groups whose reduce-scatter must finish before the gradients of `group` get memory: `group`
  // itself, and the oldest ones beyond the limit of concurrent reduce-scatters.
  std::vector<int> due(int group) const {
    std::vector<int> groups;
    for (std::size_t i = 0; i < scattering_.size(); ++i)
      if (scattering_[i] == group || Shards::is_due(i, scattering_.size()))
        groups.push_back(scattering_[i]);
    return groups;
  }
  // Takes memory for the gradients, until finish.
  const Memory& alloc_grads(int group) { return of(group).gradients = take(group, type_); }
  // Memory for the fp32 sums of the gradients; the same memory until they are scattered.
  const Memory& widen(int group) {
    Group& one = of(group);
    if (!std::exchange(one.widened, true)) one.sums = take(group, at::kFloat);
    return one.sums;
  }
  // Returns the memory to reduce-scatter: the fp32 sums, in which case the gradients' memory is
  // returned to the pool at once, or else the gradients.
  const Memory& scatter(int group) {
    Group& one = of(group);
    if (fp32_sums_) {
      widen(group);
      pool_.give_back(std::exchange(one.gradients, std::exchange(one.sums, {})));
      one.widened = false;
    }
    scattering_.push_back(group);
    return one.gradients;
  }
  void finish(int group) {
    std::erase(scattering_, group);
    pool_.give_back(std::exchange(of(group).gradients, {}));
  }

 private:
  struct Group {
    std::int64_t numel = 0;
    Memory values, gradients, sums;
    bool widened = false;
  };
  Group& of(int group) { return groups_[std::size_t(group)]; }
  Memory take(int group, at::ScalarType type) {
    const std::int64_t numel = of(group).numel;
    return pool_.take(numel, type, [&] { return make_(numel, type); });
  }

  at::ScalarType type_;
  bool fp32_sums_;
  Make make_;
  std::vector<Group> groups_;
  std::vector<int> scattering_;  // groups, in the order in which their reduce-scatters began
  BufferPool<Memory> pool_;
};

}  // namespace echelon
