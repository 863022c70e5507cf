// Memory that groups of parameters are lent in turn: what comes back is lent again, and new memory
// is made where nothing free is large enough. The best fit is taken, the oldest of equals, so that
// a step that repeats takes the same memory for the same group.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace echelon {

// Memory has numel() and scalar_type(): a tensor, or the description of one.
template <class Memory>
class BufferPool {
 public:
  // `make` gives new memory, where it is needed.
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
