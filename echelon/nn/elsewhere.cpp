#include "echelon/nn/elsewhere.h"

#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include <memory>
#include <numeric>

#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr auto mark = c10::DispatchKey::DeferredInit;

const std::string* reason_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(mark) || !tensor.has_storage()) return nullptr;
  const auto& reason =
      tensor.storage().unsafeGetStorageImpl()->get_extra_meta().custom_data_ptr_error_msg_;
  return reason ? &*reason : nullptr;
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const auto& value : *stack) {
    if (value.isTensor())
      if (const auto* reason = reason_of(value.toTensor())) throw InvalidArgument(*reason);
    if (value.isTensorList())
      for (const at::Tensor& one : value.toTensorVector())
        if (const auto* reason = reason_of(one)) throw InvalidArgument(*reason);
  }
  throw InvalidArgument(op.schema().name() +
                        " was given a parameter whose values are not in this process");
}

// Runs once, and only in programs that have such tensors. If another library has taken the key, its
// fallback runs, and torch's own error still refuses the access.
void register_refusal() {
  static const auto library = []() -> std::unique_ptr<torch::Library> {
    try {
      auto made =
          std::make_unique<torch::Library>(torch::Library::IMPL, "_", mark, __FILE__, __LINE__);
      made->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
      return made;
    } catch (const c10::Error&) {
      return nullptr;
    }
  }();
}

// All torch versions that Echelon builds with have the first of these; only the newest has the
// second.
template <class Storage>
constexpr bool can_allow = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

template <class Storage>
void set_refusal(Storage& storage, const std::string* reason) {
  if constexpr (can_allow<Storage>) {
    if (reason)
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(*reason);
    else
      storage.clear_data_ptr_access_error_msg_();
  }
}

}  // namespace

at::Tensor tensor_elsewhere(const std::vector<std::int64_t>& sizes,
                            const at::TensorOptions& options, const std::string& reason) {
  register_refusal();
  const auto numel =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       static_cast<std::size_t>(numel) * options.dtype().itemsize(),
                       c10::DataPtr(nullptr, options.device()), /*allocator=*/nullptr,
                       /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(options.computeDispatchKey()) | c10::DispatchKeySet(mark),
      options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void refuse_memory(const at::Tensor& tensor, const std::string& reason) {
  set_refusal(*tensor.storage().unsafeGetStorageImpl(), &reason);
}

void allow_memory(const at::Tensor& tensor) {
  set_refusal(*tensor.storage().unsafeGetStorageImpl(), nullptr);
}

}  // namespace echelon
