// What a step needs of a GPU beside tensors: a stream of its own, graphs, and its memory figures.
// Without CUDA in the build the functions say so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace echelon {

bool cuda_built();
int cuda_devices();  // 0 where there is none

// A stream beside the default one: graphs cannot be recorded on the default.
class SideStream {
 public:
  SideStream();
  ~SideStream();

  // While one lives, the stream is its thread's current one. What the stream is given comes after
  // what the one before was given until then, and that one goes on after it.
  class Current {
   public:
    explicit Current(const SideStream& stream);
    ~Current();

   private:
    struct Guard;
    std::unique_ptr<Guard> guard_;
  };

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

// A recorded sequence of kernels. `record` runs `work` once without executing it; `replay` executes
// it with the tensors' present contents.
class DeviceGraph {
 public:
  DeviceGraph();
  ~DeviceGraph();
  void record(const std::function<void()>& work);
  void replay();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What torch's caching allocator has taken from the GPU at most, and the part of it in tensors.
struct DeviceMemory {
  std::uint64_t peak_reserved = 0;
  std::uint64_t peak_allocated = 0;
};
DeviceMemory device_memory();
std::uint64_t device_bytes();  // that the GPU has

}  // namespace echelon
