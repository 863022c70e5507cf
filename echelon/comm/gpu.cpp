#include "echelon/comm/gpu.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "echelon/launch/environment.h"

namespace echelon {

void use_own_gpu() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;  // no CUDA in torch: reported later
  const c10::impl::VirtualGuardImpl gpus(c10::kCUDA);
  if (const int count = gpus.deviceCount(); count > 0)
    gpus.setDevice({c10::kCUDA, c10::DeviceIndex(read_environment().local_rank % count)});
}

int count_gpus_in_child() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(std::clamp(int(c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount()), 0, 255));
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

c10::Device current_gpu() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(); }

}  // namespace echelon
