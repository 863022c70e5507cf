// What a step needs from a GPU besides tensors: a stream of its own, graphs, and memory statistics.
// If the build lacks CUDA, the functions say so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace echelon {

bool cuda_built();
int cuda_devices();  // 0 without a GPU

// A stream beside the default one: graphs cannot be captured on the default stream.
class SideStream {
 public:
  SideStream();
  ~SideStream();

  // While one lives, the stream is its thread's current stream. Its work runs after the work queued
  // so far on the previous stream, and the previous stream continues after it.
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

// A captured sequence of kernels. `record` runs `work` once without executing its kernels; `replay`
// executes them with the tensors' current contents.
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

// The most memory that torch's caching allocator has reserved on the GPU, and the most in tensors.
struct DeviceMemory {
  std::uint64_t peak_reserved = 0;
  std::uint64_t peak_allocated = 0;
};
DeviceMemory device_memory();
std::uint64_t device_bytes();  // total memory of the GPU

}  // namespace echelon
