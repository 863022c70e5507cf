// The states of torch's own random generators: the CPU's and another device's. User modules draw
// from them. Code that must leave no trace saves the states and restores them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace echelon {

class RandomState {
 public:
  explicit RandomState(at::Device device);  // captures the current state

  const std::vector<at::Tensor>& states() const { return states_; }
  void put(const std::vector<at::Tensor>& states) const;  // from generators of the same device

 private:
  at::Device device_;
  std::vector<at::Tensor> states_;
};

}  // namespace echelon
