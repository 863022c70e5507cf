// Which GPU a rank works on.
#pragma once

#include <c10/core/Device.h>

namespace echelon {

// Makes the GPU of this rank's number on its machine (modulo those that are visible) the current
// one: for programs in which a rank is a process and nobody else has chosen.
void use_own_gpu();

// The one that is current.
c10::Device current_gpu();

}  // namespace echelon
