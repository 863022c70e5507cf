// The device that a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include "echelon/plan/options.h"

namespace echelon {

// train.device. Throws InvalidArgument if this build or this machine has none of its kind.
c10::Device device_of(const TrainOptions& train);

}  // namespace echelon
