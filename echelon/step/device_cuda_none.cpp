#include "echelon/base/error.h"
#include "echelon/step/device.h"

namespace echelon {
namespace {

[[noreturn]] void not_built() {
  throw InvalidArgument(
      "this build has no CUDA: build against a CUDA build of torch, or use train.device=cpu");
}

}  // namespace

bool cuda_built() { return false; }
int cuda_devices() { return 0; }

struct SideStream::Stream {};
SideStream::SideStream() { not_built(); }
SideStream::~SideStream() = default;

struct SideStream::Current::Guard {};
SideStream::Current::Current(const SideStream&) { not_built(); }
SideStream::Current::~Current() = default;

struct DeviceGraph::State {};
DeviceGraph::DeviceGraph() { not_built(); }
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::record(const std::function<void()>&) { not_built(); }
void DeviceGraph::replay() { not_built(); }

DeviceMemory device_memory() { return {}; }
std::uint64_t device_bytes() { return 0; }

}  // namespace echelon
