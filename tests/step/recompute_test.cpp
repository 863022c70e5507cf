// Recomputation gives the same bits as keeping everything and takes the memory that the closed form
// predicts (docs/recompute.md).
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/models/gpt2/gpt_block.h"
#include "echelon/models/gpt2/gpt_embedding.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/nn/memory.h"
#include "echelon/optim/master_update.h"
#include "echelon/step/executor.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

StepShape shape_of(const Stack& stack, int micro_batches) {
  StepShape shape{stack.size(), micro_batches, {}};
  shape.recompute = stack.runs_again();
  return shape;
}

struct Seen {
  at::Tensor loss, grads;
};

Seen step_of(Stack& stack, int micro_batches, const at::Tensor& input, const at::Tensor& target,
             at::ScalarType type) {
  stack.allocate(at::kCPU, type, Gradients::yes);
  MasterUpdate update(stack, OptimOptions());
  update.load(random_values(1));
  const StepShape shape = shape_of(stack, micro_batches);
  Executor executor(stack, &update, one_process(shape), shape);
  executor.seed(7);
  executor.step().fill_(3);
  const at::Tensor loss = executor.run({input, target});
  return {loss.clone(), stack.grads().clone()};
}

TEST(Recompute, GivesTheSameBitsAsKeepingEverything) {
  const at::Tensor input = at::randint(0, 50, {8, 16}, at::kLong),
                   target = at::randint(0, 50, {8, 16}, at::kLong);
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const double dropout : {0.0, 0.1})
      for (const int micro_batches : {1, 4}) {
        const auto seen = [&](Recompute recompute) {
          Stack stack = gpt({.layers = 3,
                             .width = 32,
                             .heads = 2,
                             .vocab = 50,
                             .context = 16,
                             .dropout = dropout,
                             .recompute = recompute});
          return step_of(stack, micro_batches, input, target, type);
        };
        const Seen none = seen(Recompute::none);
        EXPECT_GT(none.grads.abs().max().item<double>(), 1e-4);
        for (const auto recompute : {Recompute::selective, Recompute::full}) {
          const Seen other = seen(recompute);
          const std::string when =
              fmt::format("{} in {}, dropout {}, {} micro-batches", name_of(recompute),
                          at::toString(type), dropout, micro_batches);
          EXPECT_TRUE(at::equal(other.loss, none.loss)) << when;
          EXPECT_TRUE(at::equal(other.grads, none.grads)) << when;
        }
      }
}

TEST(Recompute, AppliesToLayersThatKeepMoreThanTheirInputExceptTheLoss) {
  const auto runs_again = [](Recompute recompute) {
    return gpt({.layers = 2, .recompute = recompute}).runs_again();
  };
  EXPECT_EQ(runs_again(Recompute::none), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(runs_again(Recompute::selective), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(runs_again(Recompute::full), (std::vector<bool>{false, true, true, false}));
  Stack modules;
  modules.add(UserModule("a", {part::Linear{2, 2}}).layer())
      .add(UserModule("b", {part::Linear{2, 2}}).layer())
      .add(loss_layer([](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }))
      .recompute(Recompute::full);
  EXPECT_EQ(modules.runs_again(), (std::vector<bool>{true, true, false}));
}

// Measures the kept memory at the loss, where it is largest.
class Watch : public Layer {
 public:
  explicit Watch(std::function<void()> look) : look_(std::move(look)) {}
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    look_();
    pass.saved = {x};
    return x.mean();
  }
  at::Tensor backward(const at::Tensor&, Pass& pass) override {
    return at::zeros_like(pass.saved[0]).fill_(pass.weight);
  }

 private:
  std::function<void()> look_;
};

struct Use {
  std::uint64_t kept = 0, peak = 0;  // bytes of activations
};

Use use_of(const ModelOptions& options, std::int64_t batch) {
  MemoryAccount account;
  Use use;
  Stack stack;
  stack.add(std::make_unique<GptEmbedding>(options));
  for (int i = 0; i < options.layers; ++i) stack.add(std::make_unique<GptBlock>(options, i));
  stack.add(std::make_unique<Watch>([&] { use.kept = account.now()[MemoryKind::activations]; }));
  stack.recompute(options.recompute == Recompute::full        ? Recompute::full
                  : options.recompute == Recompute::selective ? Recompute::selective
                                                              : Recompute::none);
  stack.allocate(at::kCPU, at::kFloat, Gradients::yes);
  OptimOptions plain;
  plain.name = OptimizerKind::sgd;
  MasterUpdate update(stack, plain);
  update.load(random_values(1));
  const StepShape shape = shape_of(stack, 1);
  Executor executor(stack, &update, one_process(shape), shape);
  const at::Tensor tokens = at::randint(0, options.vocab, {batch, options.context}, at::kLong);
  const MemoryCounting counting(account);
  executor.run({tokens, tokens});
  EXPECT_EQ(account.now()[MemoryKind::activations], 0U) << options.recompute;
  use.peak = account.at_peak()[MemoryKind::activations];
  return use;
}

TEST(Recompute, KeepsWhatTheClosedFormPredicts) {
  at::set_num_threads(1);
  for (const double dropout : {0.0, 0.1})
    for (const std::int64_t layers : {1, 4}) {
      constexpr std::uint64_t batch = 3, tokens = 64, d = 96, heads = 3, element = 4;
      const auto use = [&](Recompute recompute) {
        return use_of({.layers = layers,
                       .width = d,
                       .heads = heads,
                       .vocab = 32,
                       .context = tokens,
                       .dropout = dropout,
                       .recompute = recompute},
                      batch);
      };
      const Use none = use(Recompute::none), selective = use(Recompute::selective),
                full = use(Recompute::full);
      // What a block keeps per token: its input, the results of products, two means and two
      // deviations, and for each head the logarithm of attention's sum. Besides the blocks, the
      // input of the loss.
      const auto expected = [&](std::uint64_t a_token) {
        return batch * tokens * element * (std::uint64_t(layers) * a_token + d);
      };
      const std::string when = fmt::format("dropout {}, {} layers", dropout, layers);
      EXPECT_EQ(none.kept, expected(16 * d + 4 + heads)) << when;
      EXPECT_EQ(selective.kept, expected(10 * d + 4 + heads)) << when;
      EXPECT_EQ(full.kept, expected(d)) << when;
      if (layers == 1) continue;  // a recomputed layer is alive as a whole
      EXPECT_LT(full.peak, selective.peak) << when;
      EXPECT_LT(selective.peak, none.peak) << when;
      // At most the inputs, one whole block, and the backward through it.
      EXPECT_LT(full.peak, batch * tokens * element * ((layers + 16 + 13) * d + 4 + heads)) << when;
    }
}

}  // namespace
}  // namespace echelon
