// Which GPU a rank works on.
#pragma once

#include <c10/core/Device.h>

namespace echelon {

// The one that the program made current; where it is still the first, the one of this rank's number
// on its machine (modulo the GPUs that are visible). It is made current.
c10::Device own_gpu();

}  // namespace echelon
