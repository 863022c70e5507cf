#include "echelon/plan/train_device.h"

#include "echelon/base/error.h"
#include "echelon/comm/gpu.h"
#include "echelon/step/device.h"

namespace echelon {

c10::Device device_of(const TrainOptions& train) {
  if (train.device != DeviceKind::cuda) return c10::kCPU;
  if (!cuda_built())
    throw InvalidArgument(
        "train.device=cuda, but this build has no CUDA: set train.device=cpu, or build against a "
        "CUDA build of torch");
  if (cuda_devices() == 0)
    throw InvalidArgument("train.device=cuda, but there is no CUDA GPU here: set train.device=cpu");
  return current_gpu();
}

}  // namespace echelon
