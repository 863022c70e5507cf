// A pool of memory for parameter groups: returned memory is reused, and new memory is allocated if
// no free memory is large enough. take() picks the best fit, and the oldest of equals, so that a
// repeated step uses the same memory for the same group.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace echelon {

// Memory has numel() and scalar_type(): it is a tensor, or only the description of one.
template <class Memory>
class BufferPool {
 public:
  // `make` allocates new memory if it is needed.
  template <class Type, class Make>
  Memory take(std::int64_t numel, Type type, const Make& make) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->scalar_type() == type && it->numel() >= numel &&
          (best == free_.end() || it->numel() < best->numel()))
        best = it;
    if (best == free_.end()) return make();
    Memory memory = std::move(*best);
    free_.erase(best);
    return memory;
  }
  void give_back(Memory memory) { free_.push_back(std::move(memory)); }

 private:
  std::vector<Memory> free_;
};

}  // namespace echelon
