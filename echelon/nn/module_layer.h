// A user's torch::nn::Module as a layer. Autograd runs only inside the layer: the input is a fresh
// leaf, and the module's parameters and their gradients are views into flat units.
//
//   stack.add(module_layer("body", torch::nn::Sequential(...))).add(loss_layer(...));
//
// A module whose forward takes several tensors is a layer with several inputs, and one that returns
// a tuple or a vector of tensors has several outputs (Layer::forward_all). As the first layer it
// gets the tensors of a batch that Stack::reads names.
//
// Recompute: the module's forward runs a second time and builds the graph that backward then walks.
// The second run finds torch's random generators and the module's buffers in the state of the
// first, and restores both afterwards. So a module may draw random numbers, and running statistics
// see each micro-batch once.
//
// A module parameter that does not require a gradient when the layer is added is frozen. One that
// train.freeze names is frozen for that trainer only: between calls its requires_grad is what the
// user set.
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
#include <tuple>
#include <utility>

#include "echelon/nn/layer.h"
#include "echelon/nn/loss_layer.h"

namespace echelon {

class ModuleLayer : public Layer {
 public:
  using Forward = std::function<Tensors(const Tensors&)>;

  // Weight decay applies to module parameters with two or more dimensions.
  ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module, Forward forward);
  ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module,
              std::function<at::Tensor(const at::Tensor&)> forward);

  std::string name() const override { return name_; }
  void declare(Declaration& declaration) override;
  void withhold(bool values) override;
  void show() override;
  void bind(at::Device device, at::ScalarType type) override;
  Tensors forward_all(const Tensors& inputs, Pass& pass) override;
  Tensors backward_all(const Tensors& grad_outputs, Pass& pass) override;
  std::vector<std::pair<std::string, at::Tensor>> buffers() const override;
  void share_batch(const std::shared_ptr<BatchRanks>& ranks) override;

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

inline Tensors as_tensors(at::Tensor output) { return {std::move(output)}; }
inline Tensors as_tensors(Tensors outputs) { return outputs; }
template <class... T>
Tensors as_tensors(std::tuple<T...> outputs) {
  return std::apply([](auto&&... each) { return Tensors{std::move(each)...}; }, std::move(outputs));
}

// Throws InvalidArgument unless there are `expected` tensors.
void require_inputs(const Tensors& given, std::size_t expected, const std::string& layer);

// If forward can be called with different numbers of tensors, the smallest number is taken;
// module_layer<2>(…) takes two.
template <std::size_t inputs = 0, class M>
std::unique_ptr<Layer> module_layer(std::string name, torch::nn::ModuleHolder<M> module) {
  using T = const at::Tensor&;
  constexpr std::size_t count = [] {
    if constexpr (inputs > 0) return inputs;
    if constexpr (requires(M & m, T a) { m.forward(a); }) return std::size_t{1};
    if constexpr (requires(M & m, T a) { m.forward(a, a); }) return std::size_t{2};
    if constexpr (requires(M & m, T a) { m.forward(a, a, a); }) return std::size_t{3};
    return std::size_t{4};
  }();
  return std::make_unique<ModuleLayer>(name, module.ptr(),
                                       [module, name](const Tensors& x) mutable {
                                         require_inputs(x, count, name);
                                         return [&]<std::size_t... i>(std::index_sequence<i...>) {
                                           return as_tensors(module->forward(x[i]...));
                                         }
                                         (std::make_index_sequence<count>());
                                       });
}

}  // namespace echelon
