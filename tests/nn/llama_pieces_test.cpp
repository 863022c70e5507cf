// The building blocks that Llama has besides GPT-2's, against torch's autograd on the plain formula
// in fp64.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numbers>
#include <span>

#include "echelon/base/random.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/rms_norm.h"
#include "echelon/nn/rotary.h"
#include "echelon/nn/stack.h"
#include "echelon/nn/swiglu.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

at::Tensor noise(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_normal(key, 0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())), 0,
              1);
  return out;
}

double tolerance_of(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 1e-6; }

class NormLayer : public Layer {
 public:
  explicit NormLayer(std::int64_t width) : width_(width) {}
  void declare(Declaration& declaration) override {
    norm_.declare(declaration, "norm", width_, 1e-3);
  }
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    auto [y, rstd] = norm_.forward(x);
    pass.saved = {x, rstd};
    return y;
  }
  at::Tensor backward(const at::Tensor& grad, Pass& pass) override {
    return norm_.backward(grad, pass.saved[0], pass.saved[1]);
  }

 private:
  std::int64_t width_;
  RmsNorm norm_;
};

TEST(RmsNorm, HasTheGradientsOfItsFormula) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Stack stack;
    stack.add(std::make_unique<NormLayer>(15));
    stack.allocate(at::kCPU, type, Gradients::yes);
    stack.load([](const Parameter& p, at::Tensor out) { out.copy_(noise(p.shape, 3) + 1); });
    const Parameter& weight = stack.parameters().front();
    const at::Tensor leaf = weight.value.to(at::kDouble, false, true).set_requires_grad(true);
    stack.begin_step();
    for (const std::uint64_t key : {1, 2}) {  // the second micro-batch accumulates
      const at::Tensor x = (noise({21, 15}, key) * 3 + 1).to(type),
                       grad = noise({21, 15}, key + 10).to(type);
      const at::Tensor input = x.to(at::kDouble, false, true).set_requires_grad(true);
      const at::Tensor expected = input / ((input * input).mean(-1, true) + 1e-3).sqrt() * leaf;
      expected.backward(grad.to(at::kDouble));
      at::NoGradGuard no_grad;
      Pass pass;
      EXPECT_TRUE(close(stack.layer(0).forward(x, pass), expected, tolerance_of(type)));
      EXPECT_TRUE(close(stack.layer(0).backward(grad, pass), input.grad(), tolerance_of(type)));
      EXPECT_TRUE(close(weight.grad, leaf.grad(), tolerance_of(type)));
    }
  }
}

TEST(RmsNorm, NormalisesNarrowTypesInFp32) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    Stack stack;
    stack.add(std::make_unique<NormLayer>(64));
    stack.allocate(at::kCPU, type, Gradients::yes);
    stack.load([](const Parameter&, at::Tensor out) { out.fill_(1); });
    stack.begin_step();
    // The squares of these fp16 values overflow fp16.
    const at::Tensor x = (noise({3, 64}, 1) * 1000).to(type), wide = x.to(at::kDouble);
    at::NoGradGuard no_grad;
    Pass pass;
    const at::Tensor y = stack.layer(0).forward(x, pass);
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(close(y, wide / ((wide * wide).mean(-1, true) + 1e-3).sqrt(), 1e-2));
    EXPECT_EQ(stack.layer(0).backward(y, pass).scalar_type(), type);
  }
}

TEST(Swiglu, HasTheGradientsOfItsFormula) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const at::Tensor hidden = (noise({9, 14}, 1) * 3).to(type), grad = noise({9, 7}, 2).to(type);
    const at::Tensor leaf = hidden.to(at::kDouble, false, true).set_requires_grad(true);
    const auto halves = leaf.chunk(2, 1);
    const at::Tensor expected = halves[0] / (1 + (-halves[0]).exp()) * halves[1];
    expected.backward(grad.to(at::kDouble));
    EXPECT_TRUE(close(swiglu(hidden), expected, tolerance_of(type)));
    EXPECT_TRUE(close(swiglu_backward(grad, hidden), leaf.grad(), tolerance_of(type)));
  }
}

class LinearLayer : public Layer {
 public:
  void declare(Declaration& declaration) override {
    linear_.declare(declaration, "linear", 15, 13, 0.5, Linear::Bias::no);
  }
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    pass.saved = {x};
    return linear_.forward(x);
  }
  at::Tensor backward(const at::Tensor& grad, Pass& pass) override {
    return linear_.backward(grad, pass.saved[0], pass);
  }

 private:
  Linear linear_;
};

TEST(Linear, HasTheGradientsOfItsFormulaWithoutABias) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Stack stack;
    stack.add(std::make_unique<LinearLayer>());
    ASSERT_EQ(stack.parameters().size(), 1u);
    stack.allocate(at::kCPU, type, Gradients::yes);
    stack.load(random_values(1));
    stack.begin_step();
    const at::Tensor x = noise({21, 15}, 1).to(type), grad = noise({21, 13}, 2).to(type),
                     weight = stack.parameters().front().value;
    at::NoGradGuard no_grad;
    Pass pass;
    EXPECT_TRUE(close(stack.layer(0).forward(x, pass), x.matmul(weight), tolerance_of(type)));
    EXPECT_TRUE(
        close(stack.layer(0).backward(grad, pass), grad.matmul(weight.t()), tolerance_of(type)));
    EXPECT_TRUE(close(stack.parameters().front().grad, x.t().matmul(grad), tolerance_of(type)));
  }
}

// Each pair of a head as a complex number, times e^(i angle).
at::Tensor plainly_turned(const at::Tensor& x, std::int64_t heads, const RotaryOptions& options,
                          double sign) {
  at::Tensor out = x.clone();
  const auto half = options.head_width / 2;
  const auto f = rotary_frequencies(options);
  auto at = out.accessor<double, 3>();
  for (std::int64_t s = 0; s < x.size(0); ++s)
    for (std::int64_t t = 0; t < x.size(1); ++t)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < half; ++i) {
          double& a = at[s][t][h * 2 * half + i];
          double& b = at[s][t][h * 2 * half + half + i];
          const double angle = sign * double(t) * f[std::size_t(i)], first = a;
          a = first * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + first * std::sin(angle);
        }
  return out;
}

TEST(Rotary, RotatesTheFirstHeadsByTheirPositionsAndBack) {
  const RotaryOptions options{.head_width = 6, .context = 11, .base = 50};
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Rotary rotary(options);
    rotary.bind(at::kCPU, type);
    const at::Tensor before = noise({3, 7, 5 * 6}, 1).to(type), x = before.clone(),
                     wide = before.to(at::kDouble);
    const double allowed = type == at::kBFloat16 ? 1e-2 : tolerance_of(type);
    rotary.rotate(x, 4, Rotary::Direction::forth, {});
    EXPECT_TRUE(close(x, plainly_turned(wide, 4, options, 1), allowed)) << at::toString(type);
    EXPECT_TRUE(close(x.narrow(2, 24, 6), wide.narrow(2, 24, 6), 0)) << "values do not turn";
    rotary.rotate(x, 4, Rotary::Direction::back, {});
    EXPECT_TRUE(close(x, wide, allowed)) << at::toString(type);
  }
}

TEST(Rotary, MakesProductsDependOnlyOnTheDistance) {
  Rotary rotary({.head_width = 8, .context = 32});
  rotary.bind(at::kCPU, at::kDouble);
  const at::Tensor q = noise({1, 1, 8}, 1), k = noise({1, 1, 8}, 2);
  const at::Tensor queries = q.repeat({1, 32, 1}), keys = k.repeat({1, 32, 1});
  rotary.rotate(queries, 1, Rotary::Direction::forth, {});
  rotary.rotate(keys, 1, Rotary::Direction::forth, {});
  const at::Tensor scores = queries[0].matmul(keys[0].t());
  for (int t = 5; t < 32; ++t) {
    EXPECT_NEAR(scores[t][t - 3].item<double>(), scores[4][1].item<double>(), 1e-12) << t;
  }
}

TEST(Rotary, StretchesLongWavelengthsAsLlama3Does) {
  const RotaryOptions plain{.head_width = 16, .context = 8, .base = 500};
  RotaryOptions scaled = plain;
  scaled.factor = 8;
  scaled.original_context = 64;
  const auto before = rotary_frequencies(plain), after = rotary_frequencies(scaled);
  int stay = 0, between = 0, stretched = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / before[i];
    if (wavelength < 16) {
      EXPECT_DOUBLE_EQ(after[i], before[i]);
      ++stay;
    } else if (wavelength > 64) {
      EXPECT_DOUBLE_EQ(after[i], before[i] / 8);
      ++stretched;
    } else {
      EXPECT_LT(after[i], before[i]);
      EXPECT_GT(after[i], before[i] / 8);
      ++between;
    }
  }
  EXPECT_GT(stay, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(stretched, 0);
}

}  // namespace
}  // namespace echelon
