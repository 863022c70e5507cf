// Whole steps, cut at layer boundaries, against one autograd graph over the whole batch.
#include "echelon/step/executor.h"

#include <memory>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/module_layer.h"
#include "echelon/optim/master_update.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"
#include "tests/optim/plain_sgd.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

constexpr double tolerance = 1e-12;

// An MLP whose layers are separate modules, and the same MLP as plain modules for autograd.
struct Mlp {
  std::vector<nn::Linear> own, plain;
  Stack stack;

  Mlp() {
    const std::vector<std::int64_t> sizes = {5, 9, 7, 3};
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      nn::Linear layer(sizes[i], sizes[i + 1]), twin(sizes[i], sizes[i + 1]);
      layer->to(at::kDouble);
      twin->to(at::kDouble);
      at::NoGradGuard no_grad;
      twin->weight.copy_(layer->weight);
      twin->bias.copy_(layer->bias);
      own.push_back(layer);
      plain.push_back(twin);
      stack.add(std::make_unique<ModuleLayer>(
          "layer" + std::to_string(i), layer.ptr(),
          [layer](const at::Tensor& x) mutable { return layer->forward(x).tanh(); }));
    }
    stack.add(loss_layer(
        [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); }));
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
    stack.load(random_values(1));
  }

  // The loss of the whole batch in one graph, with its gradients in `plain`.
  at::Tensor whole(const at::Tensor& input, const at::Tensor& target) {
    at::Tensor x = input;
    for (auto& layer : plain) {
      layer->zero_grad();
      x = layer->forward(x).tanh();
    }
    const at::Tensor loss = at::mse_loss(x, target);
    loss.backward();
    return loss.detach();
  }
};

// Every micro-batch runs forward through all layers, then every one runs backward, the last one
// first.
Table all_forward_first(int layers, int micro_batches) {
  Table table;
  for (int m = 0; m < micro_batches; ++m) {
    for (int l = 0; l < layers; ++l) table.push_back({Action::Kind::forward, l, m});
  }
  for (int m = micro_batches; m-- > 0;) {
    for (int l = layers; l-- > 0;) table.push_back({Action::Kind::backward, l, m});
  }
  table.push_back({Action::Kind::update});
  return table;
}

void expect_like_autograd(Table (*schedule)(int, int), int micro_batches) {
  Mlp mlp;
  MasterUpdate update(mlp.stack, plain_sgd());
  update.load(random_values(1));
  Executor executor(mlp.stack, &update, schedule(mlp.stack.size(), micro_batches),
                    {mlp.stack.size(), micro_batches, {}});
  for (int step = 0; step < 3; ++step) {
    const at::Tensor input = at::randn({8, 5}, at::kDouble),
                     target = at::randn({8, 3}, at::kDouble);
    const at::Tensor expected = mlp.whole(input, target);
    update.rate().fill_(0.25);
    const at::Tensor loss = executor.run({input, target});
    EXPECT_TRUE(close(loss, expected, tolerance))
        << micro_batches << " micro-batches, step " << step;
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < mlp.own.size(); ++i) {
      for (auto [own, plain] : {std::pair{mlp.own[i]->weight, mlp.plain[i]->weight},
                                {mlp.own[i]->bias, mlp.plain[i]->bias}}) {
        EXPECT_TRUE(close(own.grad(), plain.grad(), tolerance))
            << "gradient in layer " << i << ", step " << step;
        plain.sub_(plain.grad(), 0.25);
        EXPECT_TRUE(close(own, plain, tolerance))
            << "parameter in layer " << i << ", step " << step;
      }
    }
  }
}

TEST(Executor, EqualsAutogradOverTheWholeBatch) {
  for (const int micro_batches : {1, 2, 4}) expect_like_autograd(one_process, micro_batches);
}

TEST(Executor, EqualsAutogradInAnotherOrder) {
  for (const int micro_batches : {1, 2, 4}) expect_like_autograd(all_forward_first, micro_batches);
}

TEST(Executor, GivesTheSameGptHoweverItsBatchIsCut) {
  for (const bool tied : {true, false}) {
    const at::Tensor input = at::randint(0, 11, {8, 7}, at::kLong),
                     target = at::randint(0, 11, {8, 7}, at::kLong);
    at::Tensor loss, grads;
    for (const int micro_batches : {1, 2, 4, 8}) {
      Stack stack =
          gpt({.layers = 2, .width = 15, .heads = 3, .vocab = 11, .context = 9, .tied = tied});
      stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
      MasterUpdate update(stack, plain_sgd());
      update.load(random_values(1));
      Executor executor(stack, &update, one_process(stack.size(), micro_batches),
                        {stack.size(), micro_batches, {}});
      const at::Tensor own_loss = executor.run({input, target});
      if (micro_batches == 1) {
        loss = own_loss.clone();
        grads = stack.grads().clone();
        EXPECT_GT(grads.abs().max().item<double>(), 1e-3);
      }
      EXPECT_TRUE(close(own_loss, loss, tolerance)) << micro_batches;
      EXPECT_TRUE(close(stack.grads(), grads, tolerance)) << micro_batches;
    }
  }
}

TEST(Executor, FreesEveryActivationAndHoldsOneMicroBatchAtATime) {
  const auto peak = [](int micro_batches) {
    Mlp mlp;
    MasterUpdate update(mlp.stack, plain_sgd());
    Executor executor(mlp.stack, &update, one_process(mlp.stack.size(), micro_batches),
                      {mlp.stack.size(), micro_batches, {}});
    const at::Tensor input = at::randn({4096, 5}, at::kDouble),
                     target = at::randn({4096, 3}, at::kDouble);
    MemoryAccount account;
    const MemoryCounting counting(account);
    executor.run({input, target});
    EXPECT_EQ(account.now()[MemoryKind::activations], 0U) << micro_batches << " micro-batches";
    return static_cast<double>(account.at_peak()[MemoryKind::activations]);
  };
  const double whole = peak(1);
  EXPECT_GT(whole, 4096 * 8 * (9 + 7 + 3)) << "a value of each layer for each sample";
  EXPECT_NEAR(peak(8), whole / 8, whole / 50);
}

TEST(Executor, GivesAnUnusedParameterAZeroGradient) {
  nn::Linear used(2, 2), unused(2, 2);
  Stack stack;
  stack.add(std::make_unique<ModuleLayer>(
      "used", used.ptr(), [used](const at::Tensor& x) mutable { return used->forward(x); }));
  stack.add(std::make_unique<ModuleLayer>("unused", unused.ptr(),
                                          [](const at::Tensor& x) { return x * 2; }));
  stack.add(
      loss_layer([](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }));
  stack.allocate(at::kCPU, at::kFloat, Gradients::yes);
  at::Tensor(stack.grads()).fill_(7);
  MasterUpdate update(stack, plain_sgd());
  update.load(random_values(1));
  const at::Tensor before = unused->weight.detach().clone();
  update.rate().fill_(0.1);
  Executor(stack, &update, one_process(3, 1), {3, 1, {}}).run({at::ones({4, 2}), at::ones({4, 2})});
  EXPECT_TRUE(at::equal(unused->weight, before));
  EXPECT_EQ(stack.find("unused.weight")->grad.ne(0).sum().item<double>(), 0);
  EXPECT_EQ(update.halted().item<double>(), 0);
}

TEST(Executor, RefusesABatchThatCannotBeCut) {
  Mlp mlp;
  MasterUpdate update(mlp.stack, plain_sgd());
  Executor executor(mlp.stack, &update, one_process(mlp.stack.size(), 4),
                    {mlp.stack.size(), 4, {}});
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              executor.run({at::ones({3, 5}, at::kDouble), at::ones({3, 3}, at::kDouble)});
            }),
            "a batch of 3 samples cannot be cut into 4 micro-batches");
  EXPECT_EQ(
      thrown<InvalidArgument>([&] {
        executor.run({at::ones({8, 5}, at::kDouble), at::ones({4, 3}, at::kDouble)});
      }),
      "the batch's 'target' is [4, 3], and its 'input' has 8 samples: the first dimension must "
      "be the samples in both");
}

TEST(Executor, RefusesAModelWithoutLayersOrLoss) {
  Stack empty;
  empty.allocate(at::kCPU, at::kDouble, Gradients::yes);
  MasterUpdate nothing(empty, plain_sgd());
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              Executor(empty, &nothing, one_process(0, 1), {0, 1, {}});
            }),
            "the model has no layers; add them, and a loss as the last");

  Stack endless;
  endless.add(module_layer("layer", nn::Linear(5, 3)));
  endless.allocate(at::kCPU, at::kDouble, Gradients::yes);
  MasterUpdate update(endless, plain_sgd());
  Executor executor(endless, &update, one_process(1, 1), {1, 1, {}});
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              executor.run({at::ones({4, 5}, at::kDouble), at::ones({4, 3}, at::kDouble)});
            }),
            "the model's last layer gave 12 values; it must be a loss, which gives one");
}

TEST(Executor, RunsAModelWithNothingToTrain) {
  Stack stack;
  stack.add(
      loss_layer([](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }));
  stack.allocate(at::kCPU, at::kFloat, Gradients::yes);
  MasterUpdate update(stack, OptimOptions());
  Executor executor(stack, &update, one_process(1, 2), {1, 2, {}});
  EXPECT_TRUE(
      close(executor.run({at::ones({4, 3}).mul(3), at::ones({4, 3})}), at::ones({}).mul(4), 0));
  EXPECT_EQ(update.norm().item<double>(), 0);
}

TEST(Executor, RefusesATableThatCannotRun) {
  Mlp mlp;
  MasterUpdate update(mlp.stack, plain_sgd());
  EXPECT_EQ(
      thrown<InvalidArgument>([&] {
        Executor(mlp.stack, &update, one_process(mlp.stack.size() + 1, 1),
                 {mlp.stack.size(), 1, {}});
      }),
      "action 4 of the step, forward(layer 4, micro-batch 0), cannot run: there are 4 layers");
}

}  // namespace
}  // namespace echelon
