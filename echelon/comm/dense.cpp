#include "echelon/comm/dense.h"

#include <ATen/ops/empty.h>

namespace echelon {

Dense::Dense(const at::Tensor& tensor, Use use)
    : Dense(tensor, use, tensor.defined() ? tensor.scalar_type() : at::kByte) {}

Dense::Dense(const at::Tensor& tensor, Use use, at::ScalarType type)
    : original_(tensor), use_(use) {
  direct_ = !tensor.defined() ||
            (tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type);
  if (direct_) {
    dense_ = tensor;
  } else if (use == write) {
    dense_ = at::empty(tensor.sizes(), at::TensorOptions().dtype(type).device(at::kCPU));
  } else {
    dense_ = tensor.to(at::TensorOptions().dtype(type).device(at::kCPU)).contiguous();
    if (dense_.is_alias_of(tensor)) dense_ = dense_.clone();
  }
}

void* Dense::data() const {
  return dense_.defined() && dense_.numel() ? dense_.data_ptr() : nullptr;
}

void Dense::detach() {
  if (direct_ && dense_.defined()) dense_ = dense_.clone();
}

void Dense::finish() const {
  if (!direct_ && use_ != read) original_.copy_(dense_);
}

}  // namespace echelon
