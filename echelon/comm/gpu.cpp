#include "echelon/comm/gpu.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "echelon/launch/environment.h"

namespace echelon {

void use_own_gpu() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;  // no CUDA in torch: reported later
  const c10::impl::VirtualGuardImpl gpus(c10::kCUDA);
  if (const int count = gpus.deviceCount(); count > 0)
    gpus.setDevice({c10::kCUDA, c10::DeviceIndex(read_environment().local_rank % count)});
}

c10::Device current_gpu() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(); }

}  // namespace echelon
