#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "echelon/step/device.h"

namespace echelon {

bool cuda_built() { return true; }
int cuda_devices() { return static_cast<int>(c10::cuda::device_count()); }

namespace {

void follow(c10::cuda::CUDAStream later, c10::cuda::CUDAStream earlier) {
  if (later == earlier) return;
  at::cuda::CUDAEvent event;
  event.record(earlier);
  event.block(later);
}

}  // namespace

struct SideStream::Stream {
  c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
};
SideStream::SideStream() : stream_(std::make_unique<Stream>()) {}
SideStream::~SideStream() = default;

struct SideStream::Current::Guard {
  explicit Guard(c10::cuda::CUDAStream side)
      : before(c10::cuda::getCurrentCUDAStream()), now(side), guard(side) {
    follow(now, before);
  }
  ~Guard() {
    try {
      follow(before, now);
    } catch (const c10::Error&) {  // the GPU has failed: its next user gets the error
    }
  }
  c10::cuda::CUDAStream before, now;
  c10::cuda::CUDAStreamGuard guard;
};
SideStream::Current::Current(const SideStream& stream)
    : guard_(std::make_unique<Guard>(stream.stream_->stream)) {}
SideStream::Current::~Current() = default;

struct DeviceGraph::State {
  at::cuda::CUDAGraph graph;
};
DeviceGraph::DeviceGraph() : state_(std::make_unique<State>()) {}
DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::record(const std::function<void()>& work) {
  // The graph's tensors live in their own memory pool. Without this, memory that earlier steps left
  // in the cache would stay unused.
  c10::cuda::getCurrentCUDAStream().synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  state_->graph.capture_begin();
  work();
  state_->graph.capture_end();
}

void DeviceGraph::replay() { state_->graph.replay(); }

DeviceMemory device_memory() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  const auto total = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {static_cast<std::uint64_t>(stats.reserved_bytes[total].peak),
          static_cast<std::uint64_t>(stats.allocated_bytes[total].peak)};
}

std::uint64_t device_bytes() { return at::cuda::getCurrentDeviceProperties()->totalGlobalMem; }

}  // namespace echelon
