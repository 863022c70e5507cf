// The GPU that a rank uses.
#pragma once

#include <c10/core/Device.h>

namespace echelon {

// Makes the GPU with this rank's local number (modulo the visible GPUs) current. For programs in
// which each rank is a process and nothing else has chosen a GPU.
void use_own_gpu();

// The number of visible GPUs. A child process counts them, because a process that has initialised
// CUDA must not fork ranks. For programs that have no other threads yet.
int count_gpus_in_child();

// The current GPU.
c10::Device current_gpu();

}  // namespace echelon
