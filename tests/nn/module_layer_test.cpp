#include "echelon/nn/module_layer.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "echelon/base/error.h"
#include "echelon/nn/stack.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

// Two linear maps, the second of which may be left out, and one frozen parameter.
struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(5, 7));
    second = register_module("second", nn::Linear(7, 3));
    offset = register_parameter("offset", at::ones({3}), /*requires_grad=*/false);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first->forward(x).tanh();
    return (whole ? second->forward(hidden) : hidden.narrow(1, 0, 3)) + offset;
  }
  nn::Linear first{nullptr}, second{nullptr};
  at::Tensor offset;
  bool whole = true;
};
TORCH_MODULE(Net);

// A module with the same values, for autograd alone.
Net twin_of(Net net) {
  at::NoGradGuard no_grad;
  Net twin;
  const auto from = net->named_parameters();
  for (auto& item : twin->named_parameters()) item.value().copy_(from[item.key()]);
  return twin;
}

Stack stack_of(std::unique_ptr<Layer> layer, at::ScalarType type) {
  Stack stack;
  stack.add(std::move(layer));
  stack.allocate(at::kCPU, type, Gradients::yes);
  stack.load(random_values(1));
  return stack;
}

// Runs one micro-batch through the only layer; returns the gradient of the input.
at::Tensor run(Stack& stack, const at::Tensor& input, const at::Tensor& grad) {
  at::NoGradGuard no_grad;
  Pass pass;
  stack.layer(0).forward_all({input}, pass);
  return stack.layer(0).backward_all({grad}, pass)[0];
}

void expect_gradients_of(Stack& stack, Net twin) {
  for (const auto& item : twin->named_parameters()) {
    const Parameter* p = stack.find("net." + item.key());
    ASSERT_NE(p, nullptr) << item.key();
    if (!p->trainable) continue;
    EXPECT_TRUE(close(p->grad, item.value().grad(), 1e-12)) << item.key();
    EXPECT_TRUE(close(stack.grads().narrow(0, p->grad.storage_offset(), p->numel()),
                      item.value().grad().flatten(), 1e-12))
        << item.key() << " in the flat buffer";
  }
}

TEST(ModuleLayer, DescribesTheModulesParametersWithTheirValues) {
  Net net;
  const Net twin = twin_of(net);
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  EXPECT_EQ(stack.parameter_count(), 5 * 7 + 7 + 7 * 3 + 3 + 3);
  for (const auto& item : twin->named_parameters()) {
    const Parameter* p = stack.find("net." + item.key());
    ASSERT_NE(p, nullptr) << item.key();
    EXPECT_TRUE(at::equal(p->value, item.value())) << item.key();
    EXPECT_EQ(p->update.decay, item.value().dim() >= 2) << item.key();
    EXPECT_EQ(p->trainable, item.key() != "offset");
  }
}

TEST(ModuleLayer, RefusesASecondLayerOverOneModule) {
  Net net;
  Stack stack;
  stack.add(module_layer("a", net));
  const std::string refusal = thrown<InvalidArgument>([&] { stack.add(module_layer("b", net)); });
  EXPECT_NE(refusal.find("a module can be in one layer only"), std::string::npos) << refusal;
}

TEST(ModuleLayer, MakesTheModulesParametersViewsOfTheBuffers) {
  Net net;
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  for (const auto& item : net->named_parameters()) {
    const Parameter& p = *stack.find("net." + item.key());
    EXPECT_EQ(item.value().const_data_ptr(), p.value.const_data_ptr()) << item.key();
    EXPECT_EQ(item.value().requires_grad(), p.trainable) << item.key();
  }
  at::Tensor(stack.values()).fill_(0.5);
  EXPECT_EQ(net->second->bias[0].item<double>(), 0.5)
      << "the user's own handle sees what training writes";
}

TEST(ModuleLayer, FreezesAParameterForItsOwnStackOnly) {
  Net net;
  Stack first;
  first.add(module_layer("net", net));
  first.find("net.first.weight")->trainable = false;
  first.allocate(at::kCPU, at::kDouble, Gradients::yes);
  first.load(random_values(1));
  const at::Tensor x = at::randn({2, 5}, at::kDouble), grad = at::ones({2, 3}, at::kDouble);
  run(first, x, grad);
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_TRUE(net->second->weight.grad().defined());
  EXPECT_TRUE(net->first->weight.requires_grad()) << "the user's own flag";

  Stack second;  // while the first still lives
  second.add(module_layer("net", net));
  EXPECT_TRUE(second.find("net.first.weight")->trainable);
  second.allocate(at::kCPU, at::kDouble, Gradients::yes);
  second.load(random_values(1));
  run(second, x, grad);
  EXPECT_GT(net->first->weight.grad().abs().max().item<double>(), 0);
}

TEST(ModuleLayer, UsesTheModulesValuesAtAllocation) {
  Net net;
  Stack stack;
  stack.add(module_layer("net", net));
  {
    at::NoGradGuard no_grad;
    net->first->weight.fill_(3);  // e.g. read from a file, after the layer was added
  }
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  stack.load(random_values(1));
  EXPECT_TRUE(close(net->first->weight, at::ones({7, 5}).mul(3), 0));
}

TEST(ModuleLayer, MatchesAutogradAndAccumulatesOverMicroBatches) {
  Net net;
  Net twin = twin_of(net);
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  for (int step = 0; step < 2; ++step) {
    at::Tensor(stack.grads()).fill_(std::nan(""));
    twin->zero_grad();
    stack.begin_step();
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      const at::Tensor input = at::randn({4, 5}, at::kDouble),
                       grad = at::randn({4, 3}, at::kDouble);
      const at::Tensor grad_input = run(stack, input, grad);
      const at::Tensor x = input.clone().set_requires_grad(true);
      twin->forward(x).backward(grad);
      EXPECT_TRUE(close(grad_input, x.grad(), 1e-12)) << "step " << step;
      expect_gradients_of(stack, twin);
    }
    EXPECT_FALSE(net->offset.grad().defined());
  }
}

TEST(ModuleLayer, KeepsSeveralMicroBatchesApart) {
  Net net;
  Net twin = twin_of(net);
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  stack.begin_step();
  const at::Tensor a = at::randn({2, 5}, at::kDouble), b = at::randn({3, 5}, at::kDouble);
  {
    at::NoGradGuard no_grad;
    Pass first, second;
    stack.layer(0).forward_all({a}, first);
    stack.layer(0).forward_all({b}, second);
    EXPECT_EQ(stack.layer(0).backward_all({at::ones({2, 3}, at::kDouble)}, first)[0].size(0), 2);
    EXPECT_EQ(stack.layer(0).backward_all({at::ones({3, 3}, at::kDouble)}, second)[0].size(0), 3);
  }
  twin->forward(a).sum().backward();
  twin->forward(b).sum().backward();
  expect_gradients_of(stack, twin);
}

TEST(ModuleLayer, FindsItsBuffersAgainAfterTheUserDroppedTheGradients) {
  Net net;
  Net twin = twin_of(net);
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  const at::Tensor input = at::randn({4, 5}, at::kDouble), grad = at::randn({4, 3}, at::kDouble);
  twin->forward(input).backward(grad);
  for (const bool to_none : {true, false}) {
    stack.begin_step();
    run(stack, input, grad);
    net->zero_grad(to_none);
    stack.begin_step();
    run(stack, input, grad);
    expect_gradients_of(stack, twin);
    EXPECT_EQ(net->first->weight.grad().const_data_ptr(),
              stack.find("net.first.weight")->grad.const_data_ptr());
  }
}

TEST(ModuleLayer, GivesAnUnusedParameterAZeroGradient) {
  Net net;
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  at::Tensor(stack.grads()).fill_(std::nan(""));
  net->whole = false;
  stack.begin_step();
  run(stack, at::randn({4, 5}, at::kDouble), at::ones({4, 3}, at::kDouble));
  stack.zero_unwritten_grads(0, stack.grads().numel());
  EXPECT_EQ(stack.find("net.second.weight")->grad.ne(0).sum().item<double>(), 0);
  EXPECT_EQ(stack.find("net.second.bias")->grad.ne(0).sum().item<double>(), 0);
  EXPECT_GT(stack.find("net.first.weight")->grad.abs().sum().item<double>(), 0);
}

TEST(ModuleLayer, GivesAZeroInputGradientIfTheModuleIgnoresItsInput) {
  Net net;
  Stack stack;
  stack.add(std::make_unique<ModuleLayer>("net", net.ptr(), [net](const at::Tensor& x) mutable {
    return net->second->bias.expand({x.size(0), 3});
  }));
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  stack.load(random_values(1));
  stack.begin_step();
  EXPECT_TRUE(close(run(stack, at::ones({4, 5}, at::kDouble), at::ones({4, 3}, at::kDouble)),
                    at::ones({4, 5}).zero_(), 0));
  EXPECT_TRUE(close(stack.find("net.second.bias")->grad, at::ones({3}).mul(4), 0));
}

TEST(ModuleLayer, PassesNoGradientToTokens) {
  struct LookupImpl : nn::Module {
    LookupImpl() { table = register_parameter("table", at::randn({6, 2}, at::kDouble)); }
    at::Tensor forward(const at::Tensor& tokens) { return table.index_select(0, tokens); }
    at::Tensor table;
  };
  Stack stack = stack_of(module_layer("lookup", nn::ModuleHolder<LookupImpl>()), at::kDouble);
  stack.begin_step();
  const at::Tensor tokens = at::arange(3, at::kLong);
  EXPECT_FALSE(run(stack, tokens, at::ones({3, 2}, at::kDouble)).defined());
  EXPECT_EQ(stack.find("lookup.table")->grad.sum().item<double>(), 6);
}

TEST(ModuleLayer, KeepsRunningStatisticsAsBuffers) {
  nn::BatchNorm1d norm(3);
  Stack stack = stack_of(module_layer("norm", norm), at::kFloat);
  const auto buffers = stack.buffers();
  ASSERT_EQ(buffers.size(), 3U);
  EXPECT_EQ(buffers[0].first, "norm.running_mean");
  const at::Tensor mean = buffers[0].second, count = buffers[2].second;
  EXPECT_EQ(count.scalar_type(), at::kLong) << "integers stay integers";

  const at::Tensor input = at::randn({10, 3}) + at::ones({3}).mul(2);
  run(stack, input, at::ones({10, 3}));
  EXPECT_TRUE(close(mean, input.mean(0).mul(0.1), 1e-6)) << "training moves them";
  EXPECT_EQ(count.item<std::int64_t>(), 1);
  const at::Tensor before = mean.clone();
  const at::Tensor output = stack.infer(input);
  EXPECT_TRUE(at::equal(mean, before)) << "inference does not";
  EXPECT_GT(output.mean().item<double>(), 1) << "and uses them in place of the batch's own";
}

// A module that draws from torch's generator and has running statistics: the second run finds both
// in the state of the first and leaves no trace in either.
TEST(ModuleLayer, RunsAgainAsItRanTheFirstTime) {
  struct Seen {
    at::Tensor output, grad_input, grads, drawn;
    std::vector<at::Tensor> buffers;
  };
  const auto trained = [](bool recompute) {
    at::manual_seed(5);
    nn::Sequential net(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Dropout(0.5), nn::Linear(8, 3));
    Stack stack = stack_of(module_layer("net", net), at::kFloat);
    stack.begin_step();
    const at::Tensor a = at::randn({10, 6}), b = at::randn({10, 6}), grad = at::randn({10, 3});
    at::NoGradGuard no_grad;
    Seen seen;
    std::vector<Pass> passes(2);
    const auto forward = [&](Pass::Run run, std::size_t micro_batch) {
      passes[micro_batch].run = recompute ? run : Pass::Run::once;
      return stack.layer(0).forward_all({micro_batch == 0 ? a : b}, passes[micro_batch])[0];
    };
    seen.output = forward(Pass::Run::first, 0);
    forward(Pass::Run::first, 1);  // advances the statistics and the generator
    if (recompute) forward(Pass::Run::again, 0);
    seen.grad_input = stack.layer(0).backward_all({grad}, passes[0])[0];
    if (recompute) forward(Pass::Run::again, 1);
    stack.layer(0).backward_all({grad}, passes[1]);
    seen.grads = stack.grads().clone();
    seen.drawn = at::randn({4});
    for (const auto& [name, buffer] : stack.buffers()) seen.buffers.push_back(buffer.clone());
    return seen;
  };
  const Seen once = trained(false), again = trained(true);
  EXPECT_TRUE(at::equal(again.output, once.output));
  EXPECT_TRUE(at::equal(again.grad_input, once.grad_input));
  EXPECT_TRUE(at::equal(again.grads, once.grads));
  EXPECT_TRUE(at::equal(again.drawn, once.drawn)) << "what the user's program draws next";
  ASSERT_EQ(again.buffers.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(again.buffers[i], once.buffers[i]));
  EXPECT_EQ(again.buffers[2].item<std::int64_t>(), 2) << "two micro-batches were seen, once each";
}

TEST(ModuleLayer, RunsInNarrowTypes) {
  Net net;
  Net twin = twin_of(net);
  Stack stack = stack_of(module_layer("net", net), at::kBFloat16);
  EXPECT_EQ(net->first->weight.scalar_type(), at::kBFloat16);
  const at::Tensor input = at::randn({4, 5}, at::kBFloat16),
                   grad = at::randn({4, 3}, at::kBFloat16);
  stack.begin_step();
  EXPECT_EQ(run(stack, input, grad).scalar_type(), at::kBFloat16);
  twin->forward(input.to(at::kDouble)).backward(grad.to(at::kDouble));
  for (const auto& item : twin->named_parameters()) {
    if (item.key() == "offset") continue;
    EXPECT_TRUE(close(stack.find("net." + item.key())->grad, item.value().grad(), 0.05))
        << item.key();
  }
}

TEST(ModuleLayer, KeepsNoGraphInInference) {
  Net net;
  Stack stack = stack_of(module_layer("net", net), at::kDouble);
  const at::Tensor output = stack.infer(at::ones({2, 5}, at::kDouble));
  EXPECT_FALSE(output.requires_grad());
  EXPECT_FALSE(net->is_training());
  EXPECT_FALSE(stack.capturable());
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

TEST(LossLayer, GivesTheLossAndItsGradientTimesTheWeight) {
  const auto layer = loss_layer(mean_square);
  const at::Tensor output = at::randn({4, 3}, at::kDouble), target = at::randn({4, 3}, at::kDouble);
  at::NoGradGuard no_grad;
  Pass pass;
  pass.target = target;
  pass.weight = 0.25;
  const at::Tensor loss = layer->forward_all({output}, pass)[0];
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_EQ(loss.scalar_type(), at::kDouble);
  EXPECT_TRUE(close(loss, output.sub(target).square().mean(), 1e-14));
  EXPECT_TRUE(
      close(layer->backward_all({}, pass)[0], output.sub(target).mul(0.25 * 2 / 12), 1e-14));
}

TEST(LossLayer, GivesTheOutputWithoutATarget) {
  const at::Tensor output = at::ones({4, 3});
  Pass pass;
  pass.training = false;
  EXPECT_TRUE(at::equal(loss_layer(mean_square)->forward_all({output}, pass)[0], output));
}

TEST(LossLayer, RefusesALossOfManyValues) {
  const auto layer =
      loss_layer([](const at::Tensor& a, const at::Tensor& b) { return a.sub(b).square(); });
  Pass pass;
  pass.target = at::ones({4, 3});
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              layer->forward_all({at::ones({4, 3})}, pass);
            }),
            "the loss function gave 12 values; it must give one, the mean over the samples");
}

}  // namespace
}  // namespace echelon
