// What transfers the blocks of a BlockFile: the kernel's io_uring, or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "echelon/base/deadline.h"

namespace echelon {

struct BlockRequest {
  int descriptor = -1;
  bool write = false;
  std::uint64_t offset = 0;
  void* memory = nullptr;
  std::size_t bytes = 0;

  std::size_t moved = 0;  // bytes so far; written by the engine until `done`
  int error = 0;          // errno
  bool done = false;
};

class BlockEngine {
 public:
  virtual ~BlockEngine() = default;
  virtual const char* name() const = 0;
  virtual void begin(BlockRequest& request) = 0;
  // Waits until the request is done or the deadline passes; true if it is done.
  virtual bool wait(BlockRequest& request, Deadline deadline) = 0;
};

bool uring_built();
std::unique_ptr<BlockEngine> uring_engine();  // nullptr if not built in or not permitted
std::unique_ptr<BlockEngine> thread_engine();

}  // namespace echelon
