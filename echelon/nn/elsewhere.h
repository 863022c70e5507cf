// Tensors whose values are not in this process: other ranks own them, or they exist only while a
// layer runs. Such a tensor has sizes, a type and a device, and no memory. Whoever computes with it
// gets InvalidArgument with the reason, before torch looks for its memory; whoever asks for its
// memory directly gets torch's error with the same sentence.
//
// The key DeferredInit marks them: torch reserves it for libraries that are not part of it, and
// gives every operator on a tensor that has it to the fallback that elsewhere.cpp registers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <vector>

namespace echelon {

at::Tensor tensor_elsewhere(const std::vector<std::int64_t>& sizes,
                            const at::TensorOptions& options, const std::string& reason);

// While it lives, this thread's operators take such tensors for ordinary ones: to put one in the
// place of another (set_data).
class AllowElsewhere {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::DeferredInit};
};

// From now on whoever asks for this storage's memory gets torch's error with `reason`; allow_memory
// ends that. Nothing happens where torch cannot end it (before 2.13).
void refuse_memory(const at::Tensor& tensor, const std::string& reason);
void allow_memory(const at::Tensor& tensor);

}  // namespace echelon
