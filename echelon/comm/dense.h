// A tensor as one contiguous piece of CPU memory, for backends that work on plain memory: the
// tensor itself if possible, otherwise a copy that finish() writes back.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

class Dense {
 public:
  enum Use { read, write, both };

  Dense() = default;  // no tensor
  Dense(const at::Tensor& tensor, Use use);
  // Converts the elements to another type; finish() rounds them back.
  Dense(const at::Tensor& tensor, Use use, at::ScalarType type);

  void* data() const;  // nullptr for no elements
  const at::Tensor& tensor() const { return dense_; }
  // Switches to a copy, because the original memory is about to be written.
  void detach();
  void finish() const;

 private:
  at::Tensor original_, dense_;
  Use use_ = read;
  bool direct_ = true;
};

}  // namespace echelon
