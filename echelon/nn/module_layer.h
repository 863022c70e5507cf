// A user's torch::nn::Module as a layer. Autograd runs only inside the layer: the input is a fresh
// leaf, and the module's parameters and their gradients are views into flat units.
//
//   stack.add(module_layer("body", torch::nn::Sequential(...))).add(loss_layer(...));
//
// Recompute: the module's forward runs a second time and builds the graph that backward then walks.
// The second run finds torch's random generators and the module's buffers in the state of the
// first, and restores both afterwards. So a module may draw random numbers, and running statistics
// see each micro-batch once.
//
// If ranks shard a model, the values of the module's parameters are not always in this process.
// Calling, saving or loading the module then throws InvalidArgument that says what to call instead.
// Its tensors are tensor_elsewhere, and each of its modules has a child, "elsewhere", that refuses
// to be written by torch::save.
#pragma once

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>

#include "echelon/nn/layer.h"
#include "echelon/nn/loss_layer.h"

namespace echelon {

class ModuleLayer : public Layer {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  // Weight decay applies to module parameters with two or more dimensions.
  ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module, Forward forward);

  std::string name() const override { return name_; }
  void declare(Declaration& declaration) override;
  void withhold(bool values) override;
  void show() override;
  void bind(at::Device device, at::ScalarType type) override;
  at::Tensor forward(const at::Tensor& input, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad_output, Pass& pass) override;
  std::vector<std::pair<std::string, at::Tensor>> buffers() const override;

 private:
  void point_gradients();
  void point_values(bool withheld);
  void refuse_saving(bool refuse);

  std::string name_;
  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
  struct Bound {
    at::Tensor variable;  // the module's own parameter
    Parameter* parameter;
    at::Tensor elsewhere = {};  // stands in for a value that is not in this process
  };
  std::vector<Bound> bound_;
  std::vector<std::shared_ptr<torch::nn::Module>> refusing_;  // modules with the refusing child
};

template <class M>
std::unique_ptr<Layer> module_layer(std::string name, torch::nn::ModuleHolder<M> module) {
  return std::make_unique<ModuleLayer>(
      std::move(name), module.ptr(),
      [module](const at::Tensor& x) mutable { return module->forward(x); });
}

}  // namespace echelon
