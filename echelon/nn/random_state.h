// The states of torch's own random generators: the CPU's, and that of another device. Modules of
// users draw from them; what should leave no trace keeps them and puts them back.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace echelon {

class RandomState {
 public:
  explicit RandomState(at::Device device);  // as it is now

  const std::vector<at::Tensor>& states() const { return states_; }
  void put(const std::vector<at::Tensor>& states) const;  // of the same device's generators

 private:
  at::Device device_;
  std::vector<at::Tensor> states_;
};

}  // namespace echelon
