// A tensor as one piece of CPU memory, for backends that work on plain memory: itself where it is
// that already, else a copy, which finish() writes back to where the tensor is.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

class Dense {
 public:
  enum Use { read, write, both };

  Dense() = default;  // of nothing
  Dense(const at::Tensor& tensor, Use use);
  // As elements of another type, which finish() rounds back.
  Dense(const at::Tensor& tensor, Use use, at::ScalarType type);

  void* data() const;  // nullptr for no elements
  const at::Tensor& tensor() const { return dense_; }
  // Reads from a copy of its own, because the memory is going to be written meanwhile.
  void detach();
  void finish() const;

 private:
  at::Tensor original_, dense_;
  Use use_ = read;
  bool direct_ = true;
};

}  // namespace echelon
