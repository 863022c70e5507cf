// A layer that only holds parameters, and stacks of such layers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "echelon/nn/stack.h"

namespace echelon {

// Adds one to its input. With a target, returns the sum of the differences.
class Holder : public Layer {
 public:
  struct Described {
    std::string name;
    std::vector<std::int64_t> shape;
    Init init = Init::normal(0.02);
    bool decay = true;
    bool trainable = true;
  };
  explicit Holder(std::vector<Described> described) : described_(std::move(described)) {}

  void declare(Declaration& declaration) override {
    for (const auto& d : described_)
      declaration.parameter(d.name, d.shape, d.init, d.decay, d.trainable);
  }
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    return pass.target.defined() ? x.sub(pass.target).sum() : x.add(1);
  }
  at::Tensor backward(const at::Tensor& grad, Pass&) override { return grad; }

 private:
  std::vector<Described> described_;
};

inline Stack stack_of(std::vector<std::vector<Holder::Described>> layers) {
  Stack stack;
  for (auto& layer : layers) stack.add(std::make_unique<Holder>(std::move(layer)));
  return stack;
}

}  // namespace echelon
