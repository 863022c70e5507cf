#include "echelon/plan/layer_costs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <typeinfo>
#include <utility>

#include "echelon/nn/layer_error.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/random_state.h"

namespace echelon {
namespace {

constexpr int rounds = 3;  // the first round also builds plans and touches memory

void wait_for(at::Device device) {
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const auto& one : tensors)
    if (one.defined()) sum += static_cast<std::int64_t>(one.nbytes());
  return sum;
}

// A key that is equal for layers that do the same to inputs of one size: the class says that shapes
// determine its cost, the parameters have the same shapes, and the layers keep the same amount for
// backward. Empty: no other layer is equal.
std::string kind_of(const Layer& layer, const Stack& stack, const Tensors& inputs,
                    const LayerCost& cost) {
  if (!layer.shapes_tell_cost()) return {};
  std::string parameters;
  for (const auto& p : stack.parameters())
    if (p.here)
      parameters += fmt::format(" {}[{}]", p.trainable ? "" : "fixed", fmt::join(p.shape, ","));
  std::string sizes;
  for (const auto& input : inputs) sizes += fmt::format("[{}]", fmt::join(input.sizes(), ","));
  return fmt::format("{} of {}:{}; {} kept", typeid(layer).name(), sizes, parameters,
                     cost.activations);
}

}  // namespace

std::vector<LayerCost> measure_layers(Stack& stack, const Batch& batch, at::Device device,
                                      at::ScalarType type, std::int64_t state_bytes) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope(MemoryKind::workspace);
  const RandomState random(device);
  std::vector<LayerCost> costs;
  std::vector<std::string> kinds;
  const auto again = stack.runs_again();
  const auto shared = std::make_shared<const Batch>(batch);
  const int lowest = stack.lowest_trainable();
  Tensors x = stack.inputs_of(batch);
  for (int l = 0; l < stack.size(); ++l) {
    const bool goes_back = l >= lowest;
    std::vector<bool> alone(std::size_t(stack.size()), false);
    alone[std::size_t(l)] = true;
    stack.keep(alone);
    stack.allocate(device, type, Gradients::yes);
    stack.load(random_values(1));
    std::vector<at::Tensor> buffers;
    for (const auto& [name, buffer] : stack.buffers()) buffers.push_back(buffer.clone());

    LayerCost cost{.seconds = std::numeric_limits<double>::infinity()};
    for (const auto& p : stack.parameters())
      if (p.here) cost.state += p.numel() * (p.trainable ? state_bytes : at::elementSize(type));
    Tensors outputs;
    for (int round = 0; round < rounds; ++round) {
      Pass pass = stack.pass_for(l, shared);
      pass.selective = stack.recompute() == Recompute::selective;
      pass.draw.step = at::zeros({}, at::TensorOptions(device).dtype(at::kLong));
      if (!goes_back) pass.run = Pass::Run::only;
      pass.input_grads = l == 0 || l > lowest;
      stack.begin_step();
      wait_for(device);
      const auto start = std::chrono::steady_clock::now();
      outputs =
          in_layer(stack, l, "forward", x, [&] { return stack.layer(l).forward_all(x, pass); });
      cost.activations = bytes_of(again[std::size_t(l)] && goes_back ? x : pass.saved);
      Tensors grads;
      for (const auto& output : outputs)
        grads.push_back(l + 1 < stack.size() && output.is_floating_point()
                            ? at::full_like(output, 1e-3)
                            : at::Tensor());
      if (goes_back) stack.layer(l).backward_all(grads, pass);
      if (goes_back && again[std::size_t(l)]) {
        Pass second = stack.pass_for(l, shared);
        second.draw = pass.draw;
        stack.layer(l).forward_all(x, second);
      }
      wait_for(device);
      cost.seconds =
          std::min(cost.seconds,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::size_t next = 0;
    for (const auto& [name, buffer] : stack.buffers()) at::Tensor(buffer).copy_(buffers[next++]);
    costs.push_back(cost);
    const std::string kind = kind_of(stack.layer(l), stack, x, cost);
    kinds.push_back(kind.empty() || goes_back ? kind : "forward of " + kind);
    x = std::move(outputs);
  }
  random.put(random.states());
  share_times(costs, kinds);
  return costs;
}

}  // namespace echelon
