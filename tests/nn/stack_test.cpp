#include "echelon/nn/stack.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/models/gpt2/gpt2.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"
#include "tests/nn/holder.h"

namespace echelon {
namespace {

class Borrower : public Layer {
 public:
  explicit Borrower(std::string name) : name_(std::move(name)) {}
  void declare(Declaration& declaration) override { borrowed = declaration.tied(name_); }
  at::Tensor forward(const at::Tensor& x, Pass&) override { return x; }
  at::Tensor backward(const at::Tensor& grad, Pass&) override { return grad; }
  Parameter* borrowed = nullptr;

 private:
  std::string name_;
};

Stack odd_stack() {
  return stack_of({{{"a.weight", {3, 7}},
                    {"a.bias", {7}, Init::zeros(), false},
                    {"a.fixed", {5}, Init::ones(), true, false}},
                   {},
                   {{"c.weight", {41}}, {"c.gain", {}, Init::ones(), false}}});
}

TEST(Stack, CostsNothingUntilItIsAllocated) {
  Stack stack = odd_stack();
  EXPECT_EQ(stack.size(), 3);
  EXPECT_EQ(stack.parameter_count(), 21 + 7 + 5 + 41 + 1);
  EXPECT_FALSE(stack.values().defined());
  for (const auto& p : stack.parameters()) EXPECT_FALSE(p.value.defined()) << p.name;
}

TEST(Stack, LaysValuesAndGradientsIntoTheFlatBuffers) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    Stack stack = odd_stack();
    stack.allocate(at::kCPU, type, Gradients::yes);
    EXPECT_EQ(stack.type(), type);
    EXPECT_EQ(stack.values().numel(), 32 + 32 + 64 + 32);
    EXPECT_EQ(stack.grads().numel(), stack.values().numel());
    const auto base = static_cast<const char*>(stack.values().const_data_ptr());
    const auto grads = static_cast<const char*>(stack.grads().const_data_ptr());
    const auto size = static_cast<std::int64_t>(stack.values().element_size());
    int segments = 0;
    for (const auto& unit : stack.units()) {
      for (const auto& segment : unit.segments) {
        const Parameter& p = *stack.find(segment.name);
        EXPECT_EQ(p.value.sizes(), segment.shape) << p.name;
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.value.const_data_ptr()) % 64, 0U) << p.name;
        ++segments;
        if (!unit.trainable) {
          EXPECT_FALSE(p.grad.defined()) << p.name;
          continue;
        }
        const auto offset = (unit.begin + segment.offset) * size;
        EXPECT_EQ(static_cast<const char*>(p.value.const_data_ptr()) - base, offset) << p.name;
        EXPECT_EQ(static_cast<const char*>(p.grad.const_data_ptr()) - grads, offset) << p.name;
        EXPECT_TRUE(p.grad.is_contiguous()) << p.name;
      }
    }
    EXPECT_EQ(segments, 5);
  }
}

TEST(Stack, SeesAWriteThroughAParameterInTheBufferAndKeepsThePaddingZero) {
  Stack stack = odd_stack();
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  double sum = 0;
  for (const auto& p : stack.parameters()) {
    at::Tensor(p.value).fill_(2);
    if (p.trainable) {
      at::Tensor(p.grad).fill_(3);
      sum += static_cast<double>(p.numel());
    }
  }
  EXPECT_EQ(stack.values().sum().item<double>(), 2 * sum);
  EXPECT_EQ(stack.grads().sum().item<double>(), 3 * sum);
  EXPECT_EQ(stack.values().ne(0).sum().item<double>(), sum) << "padding was written";
}

TEST(Stack, HasNoGradientsIfNoneAreWanted) {
  Stack stack = odd_stack();
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  EXPECT_FALSE(stack.grads().defined());
  for (const auto& p : stack.parameters()) EXPECT_FALSE(p.grad.defined()) << p.name;
}

TEST(Stack, KeepsItsParametersInPlaceWhenItIsMoved) {
  Stack first = odd_stack();
  first.allocate(at::kCPU, at::kFloat, Gradients::yes);
  const Parameter* before = first.find("c.weight");
  const Stack second = std::move(first);
  EXPECT_EQ(&second.parameters()[3], before);
}

TEST(Stack, RefusesTwoParametersWithOneName) {
  Stack stack;
  stack.add(std::make_unique<Holder>(std::vector<Holder::Described>{{"w", {2}}}));
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              stack.add(std::make_unique<Holder>(std::vector<Holder::Described>{{"w", {3}}}));
            }),
            "two parameters of the model are named w; give the layers distinct names");
}

TEST(Stack, SharesATiedParameterAndListsTheTie) {
  Stack stack = stack_of({{{"a", {2}}}, {{"b", {2}}}});
  auto layer = std::make_unique<Borrower>("b");
  const Borrower* borrower = layer.get();
  stack.add(std::move(layer));
  EXPECT_EQ(borrower->borrowed, stack.find("b"));
  ASSERT_EQ(stack.ties().size(), 1U);
  EXPECT_EQ(stack.ties()[0].name, "b");
  EXPECT_EQ(stack.ties()[0].owner, 1);
  EXPECT_EQ(stack.ties()[0].user, 2);
  EXPECT_EQ(stack.parameter_count(), 4);
  EXPECT_EQ(thrown<InvalidArgument>([&] { stack.add(std::make_unique<Borrower>("z")); }),
            "a layer ties itself to z, which no earlier layer declares");
}

TEST(Stack, TakesEveryValueFromTheSourceOnce) {
  Stack stack = odd_stack();
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  std::map<std::string, int> asked;
  stack.load([&](const Parameter& p, at::Tensor out) {
    EXPECT_EQ(out.sizes(), p.shape) << p.name;
    out.fill_(++asked[p.name]);
  });
  EXPECT_EQ(asked.size(), 5U);
  for (const auto& p : stack.parameters())
    EXPECT_TRUE(close(p.value, at::ones(p.shape), 0)) << p.name;
}

TEST(Stack, InfersThroughAllLayersAndComparesWithATargetInTheLast) {
  Stack stack = stack_of({{}, {}, {}});
  EXPECT_TRUE(close(stack.infer(at::ones({2})), at::full({2}, 4), 0));
  EXPECT_TRUE(close(stack.infer(at::ones({2}), at::full({2}, 0.5)), at::full({}, 5), 0));
}

TEST(Parameter, StoresItsFirstGradientAndAddsTheOthers) {
  Stack stack = stack_of({{{"a", {3}}, {"b", {2}}}});
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  Parameter &a = *stack.find("a"), &b = *stack.find("b");
  for (int step = 0; step < 2; ++step) {
    at::Tensor(stack.grads()).fill_(std::nan(""));  // arbitrary old contents
    stack.begin_step();
    a.add_grad(at::full({3}, 2.0, at::kDouble));
    EXPECT_TRUE(close(a.grad, at::full({3}, 2), 0));
    a.add_grad(at::full({3, 1}, 5.0, at::kDouble));
    EXPECT_TRUE(close(a.grad, at::full({3}, 7), 0));
    stack.zero_unwritten_grads(0, stack.grads().numel());
    EXPECT_TRUE(close(a.grad, at::full({3}, 7), 0)) << "a gradient that was written is kept";
    EXPECT_TRUE(close(b.grad, at::full({2}, 0), 0)) << "a parameter that a step did not use";
  }
}

at::Tensor value_of(Stack stack, const std::string& name, at::ScalarType type, std::uint64_t seed) {
  stack.allocate(at::kCPU, type, Gradients::no);
  stack.load(random_values(seed));
  return stack.find(name)->value;
}

TEST(RandomValues, AreTheSameInEveryTypeUpToItsRounding) {
  const auto made = [](at::ScalarType type) {
    return value_of(stack_of({{{"w", {333, 77}}}}), "w", type, 4);
  };
  const at::Tensor wide = made(at::kDouble);
  EXPECT_TRUE(at::equal(made(at::kFloat), wide.to(at::kFloat)));
  EXPECT_TRUE(at::equal(made(at::kBFloat16), wide.to(at::kFloat).to(at::kBFloat16)));
}

TEST(RandomValues, MatchTheSequenceOfTheirNameForAnyNumberOfThreads) {
  const at::Tensor made =
      value_of(stack_of({{{"w", {100'000}, Init::normal(0.5)}}}), "w", at::kFloat, 4);
  std::vector<float> expected(100'000);
  fill_normal(derive_key(4, "w"), 0, expected, 0, 0.5);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), made.const_data_ptr<float>()));
}

TEST(RandomValues, DependOnSeedAndNameOnly) {
  const at::Tensor alone = value_of(stack_of({{{"w", {50}}}}), "w", at::kFloat, 4);
  EXPECT_TRUE(at::equal(
      value_of(stack_of({{{"v", {9}}}, {{"u", {3}}, {"w", {50}}}}), "w", at::kFloat, 4), alone))
      << "another place in another model";
  EXPECT_TRUE(
      at::equal(value_of(stack_of({{{"w", {5, 10}}}}), "w", at::kFloat, 4).flatten(), alone))
      << "element by element, whatever the shape";
  EXPECT_TRUE(
      at::equal(value_of(stack_of({{{"w", {20}}}}), "w", at::kFloat, 4), alone.narrow(0, 0, 20)));
  EXPECT_FALSE(at::equal(value_of(stack_of({{{"w", {50}}}}), "w", at::kFloat, 5), alone))
      << "another seed";
  EXPECT_FALSE(at::equal(value_of(stack_of({{{"x", {50}}}}), "x", at::kFloat, 4), alone))
      << "another name";
}

TEST(RandomValues, HaveTheMeanAndDeviationAskedFor) {
  constexpr double n = 200'000, stddev = 0.02;
  const at::Tensor w = value_of(stack_of({{{"w", {400, 500}}}}), "w", at::kDouble, 1);
  EXPECT_NEAR(w.mean().item<double>(), 0, 4 * stddev / std::sqrt(n));
  EXPECT_NEAR(w.std().item<double>(), stddev, 4 * stddev / std::sqrt(2 * n));
  EXPECT_NEAR(w.abs().lt(stddev).to(at::kDouble).mean().item<double>(), 0.6827, 0.005);
}

TEST(RandomValues, FollowTheOtherInits) {
  const at::Tensor given = at::arange(6, at::kDouble).view({2, 3});
  const auto made = [](Init init) {
    return value_of(stack_of({{{"w", {2, 3}, init}}}), "w", at::kFloat, 1);
  };
  EXPECT_TRUE(close(made(Init::zeros()), at::full({2, 3}, 0), 0));
  EXPECT_TRUE(close(made(Init::ones()), at::full({2, 3}, 1), 0));
  EXPECT_TRUE(close(made(Init::from(given)), given, 0));
}

TEST(Gpt, HasTheParametersOfGpt2) {
  ModelOptions sizes{
      .layers = 3, .width = 12, .heads = 3, .vocab = 31, .context = 9, .tied = true, .init = ""};
  const Stack tied = gpt(sizes);
  const std::int64_t d = 12, block = 12 * d * d + 13 * d, rest = (31 + 9) * d + 2 * d;
  EXPECT_EQ(tied.parameter_count(), 3 * block + rest);
  EXPECT_EQ(tied.parameters().size(), 2 + 3 * 12 + 2U);
  ASSERT_EQ(tied.ties().size(), 1U);
  EXPECT_EQ(tied.ties()[0].name, "transformer.wte.weight");
  EXPECT_EQ(tied.ties()[0].owner, 0);
  EXPECT_EQ(tied.ties()[0].user, 4);
  EXPECT_TRUE(tied.capturable());
  sizes.tied = false;
  EXPECT_EQ(gpt(sizes).parameter_count(), 3 * block + rest + 31 * d);
  EXPECT_TRUE(gpt(sizes).ties().empty());
}

TEST(Gpt, DecaysMatricesOnly) {
  const Stack stack = gpt({.layers = 2, .width = 8, .heads = 2, .vocab = 16, .context = 4});
  for (const auto& p : stack.parameters()) {
    EXPECT_EQ(p.update.decay, p.shape.size() >= 2) << p.name;
    EXPECT_TRUE(p.trainable) << p.name;
  }
}

TEST(Gpt, StartsFromGpt2sDeviations) {
  Stack stack = gpt({.layers = 8, .width = 64, .heads = 4, .vocab = 64, .context = 64});
  stack.allocate(at::kCPU, at::kDouble, Gradients::no);
  stack.load(random_values(1));
  for (const auto& p : stack.parameters()) {
    if (p.shape.size() < 2) {
      const bool weight = p.name.ends_with(".weight");
      EXPECT_TRUE(close(p.value, at::full(p.shape, weight ? 1 : 0), 0)) << p.name;
      continue;
    }
    const double expected = p.name.ends_with("c_proj.weight") ? 0.02 / 4 : 0.02;
    EXPECT_NEAR(p.value.std().item<double>(), expected, 0.06 * expected) << p.name;
  }
}

TEST(Gpt, RefusesHeadsThatDoNotDivideTheWidth) {
  EXPECT_EQ(thrown<InvalidArgument>([] { gpt({.layers = 1, .width = 100, .heads = 7}); }),
            "model.heads = 7 does not divide model.width = 100: set model.heads=5");
}

}  // namespace
}  // namespace echelon
