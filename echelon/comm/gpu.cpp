#include "echelon/comm/gpu.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "echelon/net/environment.h"

namespace echelon {

c10::Device own_gpu() {
  const c10::impl::VirtualGuardImpl gpus(c10::kCUDA);
  c10::Device device = gpus.getDevice();
  if (device.index() == 0)
    device.set_index(c10::DeviceIndex(read_environment().local_rank % gpus.deviceCount()));
  gpus.setDevice(device);
  return device;
}

}  // namespace echelon
