#include "echelon/nn/module_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/serialize/archive.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <ostream>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/nn/elsewhere.h"
#include "echelon/nn/random_state.h"
#include "echelon/nn/sync_batch_norm.h"

namespace echelon {
namespace {

at::Tensor leaf(const at::Tensor& input, bool with_grad = true) {
  at::Tensor x = input.detach();
  if (with_grad && x.is_floating_point()) x.set_requires_grad(true);
  return x;
}

at::Tensor wide_enough(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

// The current state of everything that a forward may change.
std::vector<at::Tensor> state_of(const torch::nn::Module& module, at::Device device) {
  std::vector<at::Tensor> all = RandomState(device).states();
  for (const auto& buffer : module.buffers()) all.push_back(buffer.detach().clone());
  return all;
}

// Installs a saved state and restores the previous one on destruction. Meanwhile buffers use other
// memory: copying into their own would look to autograd like a change of tensors that it has saved.
class Replay {
 public:
  Replay(const torch::nn::Module& module, at::Device device, const std::vector<at::Tensor>& state)
      : now_(device), buffers_(module.buffers()) {
    auto next = state.begin() + std::ssize(now_.states());
    now_.put({state.begin(), next});
    for (at::Tensor& buffer : buffers_) {
      contents_.push_back(buffer.detach());
      buffer.set_data(*next++);
    }
  }
  ~Replay() {
    now_.put(now_.states());
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].set_data(contents_[i]);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  RandomState now_;
  std::vector<at::Tensor> buffers_, contents_;
};

// While it lives, variables require a gradient or not as the layer needs it, and afterwards as the
// user set them: train.freeze is an option of one trainer, and the next may get the same modules.
class RequiresGrad {
 public:
  RequiresGrad() = default;
  void set(const at::Tensor& variable, bool wanted) {
    if (variable.requires_grad() == wanted) return;
    variable.set_requires_grad(wanted);
    changed_.push_back(variable);
  }
  ~RequiresGrad() {
    for (const auto& variable : changed_) variable.set_requires_grad(!variable.requires_grad());
  }
  RequiresGrad(const RequiresGrad&) = delete;
  RequiresGrad& operator=(const RequiresGrad&) = delete;

 private:
  std::vector<at::Tensor> changed_;
};

std::string elsewhere_reason(const std::string& what, bool several) {
  return fmt::format(
      "{} {} not in this process, since the ranks share the model out: call trainer.gather() on "
      "every rank before the module is used, or trainer.infer() and trainer.save_weights() in its "
      "place",
      what, several ? "are" : "is");
}

constexpr const char* refusal_name = "elsewhere";

// torch::save writes a module's parameters without calling an operator that could refuse, but it
// asks every child to write itself.
class Refusal : public torch::nn::Module {
 public:
  explicit Refusal(std::string reason) : reason_(std::move(reason)) {}
  void save(torch::serialize::OutputArchive& /*archive*/) const override {
    throw InvalidArgument(reason_);
  }
  void load(torch::serialize::InputArchive& /*archive*/) override {
    throw InvalidArgument(reason_);
  }
  void pretty_print(std::ostream& stream) const override { stream << reason_; }

 private:
  std::string reason_;
};

}  // namespace

ModuleLayer::ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module,
                         Forward forward)
    : name_(std::move(name)), module_(std::move(module)), forward_(std::move(forward)) {}

ModuleLayer::ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module,
                         std::function<at::Tensor(const at::Tensor&)> forward)
    : ModuleLayer(name, std::move(module), [name, forward](const Tensors& x) {
        require_inputs(x, 1, name);
        return Tensors{forward(x.front())};
      }) {}

void ModuleLayer::declare(Declaration& declaration) {
  for (const auto& item : module_->named_parameters()) {
    const at::Tensor& value = item.value();
    Parameter* p = declaration.parameter(name_ + "." + item.key(), value.sizes().vec(),
                                         Init::from(value.detach()),
                                         /*decay=*/value.dim() >= 2, value.requires_grad());
    bound_.push_back({value, p, {}});
  }
}

// Does not use module_->to(), which in C++ also casts integer buffers and copies the parameters
// that are about to be replaced.
void ModuleLayer::bind(at::Device device, at::ScalarType type) {
  for (at::Tensor buffer : module_->buffers()) {
    buffer.set_data(buffer.to(device, buffer.is_floating_point() ? type : buffer.scalar_type()));
  }
  for (auto& one : bound_) {
    one.elsewhere.reset();
    if (!one.parameter->here || !one.parameter->trainable) one.variable.mutable_grad().reset();
  }
  show();
}

void ModuleLayer::share_batch(const std::shared_ptr<BatchRanks>& ranks) {
  echelon::share_batch(*module_, ranks);
}

void ModuleLayer::show() { point_values(/*withheld=*/false); }

void ModuleLayer::withhold(bool values) {
  for (auto& one : bound_)
    if (one.parameter->trainable) one.variable.mutable_grad().reset();
  if (values) point_values(/*withheld=*/true);
}

void ModuleLayer::point_values(bool withheld) {
  bool all_here = true;
  const AllowElsewhere allow;
  for (auto& [variable, parameter, elsewhere] : bound_) {
    const bool here = parameter->here && !(withheld && parameter->trainable);
    all_here &= here;
    if (!here && !elsewhere.defined()) {
      const auto type = parameter->value.defined() ? parameter->value.options()
                                                   : at::TensorOptions(variable.options());
      elsewhere = tensor_elsewhere(parameter->whole_shape(), type,
                                   elsewhere_reason(parameter->name, /*several=*/false));
    }
    variable.set_data(here ? parameter->value : elsewhere);
  }
  refuse_saving(!all_here);
}

void ModuleLayer::refuse_saving(bool refuse) {
  if (refuse == !refusing_.empty()) return;
  for (const auto& module : std::exchange(refusing_, {})) module->unregister_module(refusal_name);
  if (!refuse) return;
  const auto refusal = std::make_shared<Refusal>(
      elsewhere_reason(fmt::format("the parameters of {}", name_), /*several=*/true));
  for (const auto& module : module_->modules()) {
    if (module->named_children().contains(refusal_name)) continue;  // the user's own
    module->register_module(refusal_name, refusal);
    refusing_.push_back(module);
  }
}

std::vector<std::pair<std::string, at::Tensor>> ModuleLayer::buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module_->named_buffers())
    all.emplace_back(name_ + "." + item.key(), item.value());
  return all;
}

// Autograd accumulates in place if a gradient exists. A user's `zero_grad()` drops the gradient, so
// it is pointed back at the buffer before every backward.
void ModuleLayer::point_gradients() {
  for (auto& [variable, parameter, elsewhere] : bound_) {
    if (!parameter->trainable) continue;
    parameter->zero_unwritten_grad();
    if (!variable.grad().is_same(parameter->grad)) variable.mutable_grad() = parameter->grad;
  }
}

void require_inputs(const Tensors& given, std::size_t expected, const std::string& layer) {
  if (given.size() != expected)
    throw InvalidArgument(
        fmt::format("the module of layer '{}' takes {} tensor{} and gets {}: see Stack::reads and "
                    "what the layer below returns",
                    layer, expected, expected == 1 ? "" : "s", given.size()));
}

Tensors ModuleLayer::forward_all(const Tensors& inputs, Pass& pass) {
  module_->train(pass.training);
  if (!pass.training) return forward_(inputs);
  // Needed even if the graph is dropped at once and built again: without a graph, torch may choose
  // operators that round differently.
  at::AutoGradMode grad_mode(pass.run != Pass::Run::only);
  std::optional<Replay> replay;
  const at::Device device = inputs.front().device();
  if (pass.run == Pass::Run::first) pass.saved = state_of(*module_, device);
  if (pass.run == Pass::Run::again) replay.emplace(*module_, device, pass.saved);
  Tensors x, outputs;
  for (const auto& input : inputs) x.push_back(leaf(input, pass.input_grads));
  RequiresGrad flags;
  for (const auto& one : bound_) flags.set(one.variable, one.parameter->trainable);
  const Tensors y = forward_(x);
  if (pass.keeps()) {
    pass.saved = x;
    pass.saved.insert(pass.saved.end(), y.begin(), y.end());
  }
  for (const auto& output : y) outputs.push_back(output.detach());
  return outputs;
}

Tensors ModuleLayer::backward_all(const Tensors& grad_outputs, Pass& pass) {
  const auto inputs = std::ssize(pass.saved) - std::ssize(grad_outputs);
  const Tensors x(pass.saved.begin(), pass.saved.begin() + inputs);
  Tensors y, grads;
  for (std::size_t i = 0; i < grad_outputs.size(); ++i) {
    at::Tensor& output = pass.saved[std::size_t(inputs) + i];
    if (!output.requires_grad() || !grad_outputs[i].defined()) continue;
    y.push_back(std::move(output));
    grads.push_back(grad_outputs[i]);
  }
  pass.saved.clear();
  point_gradients();
  RequiresGrad flags;  // autograd accumulates nothing into a variable that requires no gradient
  for (const auto& one : bound_) flags.set(one.variable, one.parameter->trainable);
  if (!y.empty()) torch::autograd::backward(y, grads);
  Tensors all;
  for (const auto& one : x) {
    if (!one.requires_grad())
      all.emplace_back();
    else  // a module may ignore an input
      all.push_back(one.grad().defined() ? one.grad() : at::zeros_like(one));
  }
  return all;
}

namespace {

// Declared in loss_layer.h; defined here because it also needs autograd's headers.
class LossLayer : public Layer {
 public:
  explicit LossLayer(BatchLossFunction loss) : loss_(std::move(loss)) {}

  std::string name() const override { return "the loss"; }

  Tensors forward_all(const Tensors& inputs, Pass& pass) override {
    if (!pass.target.defined()) return inputs;
    at::AutoGradMode grad_mode(pass.training);
    Tensors x, wide;
    for (const auto& input : inputs) {
      x.push_back(leaf(input));
      wide.push_back(wide_enough(x.back()));
    }
    Batch batch = pass.batch ? *pass.batch : Batch();
    batch.target = pass.target;
    if (!pass.training && pass.observe) pass.observe(inputs.front(), pass.target);
    const at::Tensor loss = loss_(wide, batch.map(wide_enough));
    if (loss.numel() != 1) {
      throw InvalidArgument(fmt::format(
          "the loss function gave {} values; it must give one, the mean over the samples",
          loss.numel()));
    }
    const at::Tensor share = share_of(pass);
    if (pass.training) {
      pass.saved = std::move(x);
      pass.saved.push_back(loss);
    }
    const at::Tensor mean = loss.detach().to(at::kDouble).reshape({});
    return {share.defined() ? mean * share : mean};
  }

  Tensors backward_all(const Tensors& /*grad_outputs*/, Pass& pass) override {
    const at::Tensor loss = std::move(pass.saved.back());
    pass.saved.pop_back();
    at::Tensor grad = at::full_like(loss, pass.weight);
    if (pass.scale.defined()) grad.mul_(pass.scale);
    if (const at::Tensor share = share_of(pass); share.defined()) grad.mul_(share);
    torch::autograd::backward({loss}, {grad});
    Tensors grads;
    for (const auto& x : pass.saved)
      grads.push_back(!x.requires_grad() || x.grad().defined() ? x.grad() : at::zeros_like(x));
    return grads;
  }

 private:
  // The fraction of the step's targets in this micro-batch; undefined: its weight says it.
  static at::Tensor share_of(const Pass& pass) {
    return pass.divisor.defined() ? pass.batch->targets.sum().div_(pass.divisor) : at::Tensor();
  }

  BatchLossFunction loss_;
};

}  // namespace

std::unique_ptr<Layer> loss_layer(LossFunction loss) {
  return batch_loss_layer([loss = std::move(loss)](const Tensors& outputs, const Batch& batch) {
    require_inputs(outputs, 1, "the loss");
    return loss(outputs.front(), batch.target);
  });
}

std::unique_ptr<Layer> batch_loss_layer(BatchLossFunction loss) {
  return std::make_unique<LossLayer>(std::move(loss));
}

}  // namespace echelon
