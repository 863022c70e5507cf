// Tensors whose values are not in this process: other ranks own them, or they exist only while a
// layer runs. Such a tensor has sizes, a type and a device, but no memory. Computing with it throws
// InvalidArgument with the reason, before torch looks for its memory. Asking for its memory
// directly throws torch's error with the same sentence.
//
// The dispatch key DeferredInit marks these tensors. Torch reserves it for external libraries and
// sends every operator on a marked tensor to the fallback that elsewhere.cpp registers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <vector>

namespace echelon {

at::Tensor tensor_elsewhere(const std::vector<std::int64_t>& sizes,
                            const at::TensorOptions& options, const std::string& reason);

// While it lives, operators of this thread treat such tensors as ordinary ones. Needed to replace
// one tensor by another (set_data).
class AllowElsewhere {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::DeferredInit};
};

// From now on, asking for this storage's memory throws torch's error with `reason`, until
// allow_memory. Does nothing with torch before 2.13, which cannot lift the refusal again.
void refuse_memory(const at::Tensor& tensor, const std::string& reason);
void allow_memory(const at::Tensor& tensor);

}  // namespace echelon
