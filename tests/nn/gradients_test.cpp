// Every layer with its own backward against torch's autograd on the plain formula, which is always
// in fp64. The layers are tested in fp32, too, because fp32 products may use another library.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "echelon/base/random.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/models/gpt2/gpt_block.h"
#include "echelon/models/gpt2/gpt_embedding.h"
#include "echelon/models/gpt2/gpt_head.h"
#include "echelon/nn/attention.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

constexpr double tolerance = 1e-10;
double tolerance_of(at::ScalarType type) { return type == at::kDouble ? tolerance : 2e-5; }

// Odd sizes, all different, and sequences shorter than the context.
constexpr std::int64_t batch = 3, tokens = 7, vocab = 11, context = 9, heads = 3, width = 15;
const ModelOptions sizes{
    .layers = 2, .width = width, .heads = heads, .vocab = vocab, .context = context, .tied = true};

at::Tensor noise(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_normal(key, 0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())), 0,
              1);
  return out;
}

at::Tensor ids(at::IntArrayRef shape, std::int64_t values, std::uint64_t key) {
  at::Tensor out = at::empty(shape, at::kLong);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    out.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(
        uniform_at(key, static_cast<std::uint64_t>(i)) * static_cast<double>(values));
  }
  return out;
}

using Leaves = std::map<std::string, at::Tensor>;
using Formula = std::function<at::Tensor(const at::Tensor& x, const Leaves& leaves)>;

// Fills a stack with values that hide no mistakes: no bias is zero, no norm's weight is one.
void fill(Stack& stack, at::ScalarType type = at::kDouble) {
  stack.allocate(at::kCPU, type, Gradients::yes);
  at::Tensor(stack.grads()).fill_(std::nan(""));  // old contents must not matter
  stack.load([](const Parameter& p, at::Tensor out) {
    out.copy_(noise(p.shape, derive_key(7, p.name)) * 0.4);
    if (p.name.ends_with("weight") && p.shape.size() == 1) out.add_(1);
  });
}

Leaves leaves_of(const Stack& stack) {
  Leaves leaves;
  for (const auto& p : stack.parameters())
    leaves[p.name] = p.value.to(at::kDouble, false, /*copy=*/true).set_requires_grad(true);
  return leaves;
}

void expect_gradients(const Stack& stack, const Leaves& leaves, const std::string& when) {
  for (const auto& p : stack.parameters()) {
    EXPECT_TRUE(close(p.grad, leaves.at(p.name).grad(), tolerance_of(stack.type())))
        << "gradient of " << p.name << ", " << when;
  }
}

// The layer's output, the gradient of its input and the gradient of every parameter equal the
// formula's. A second micro-batch adds to the gradients, and a new step overwrites them.
void expect_like_autograd(const std::function<std::unique_ptr<Layer>()>& make_layer,
                          const Formula& formula,
                          const std::function<at::Tensor(std::uint64_t)>& make_input) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Stack stack;
    stack.add(make_layer());
    fill(stack, type);
    Leaves leaves = leaves_of(stack);
    const auto run = [&](std::uint64_t key, const std::string& place) {
      const std::string when = place + " in " + at::toString(type);
      const auto cast = [&](const at::Tensor& t) { return t.is_floating_point() ? t.to(type) : t; };
      const at::Tensor input = cast(make_input(key));
      const at::Tensor x =
          input.is_floating_point() ? input.to(at::kDouble, false, /*copy=*/true) : input;
      if (x.is_floating_point()) x.set_requires_grad(true);
      const at::Tensor expected = formula(x, leaves);
      const at::Tensor grad_output = cast(noise(expected.sizes(), key + 1000));
      expected.backward(grad_output.to(at::kDouble));

      at::NoGradGuard no_grad;
      Pass pass;
      const at::Tensor output = stack.layer(0).forward(input, pass);
      const at::Tensor grad_input = stack.layer(0).backward(grad_output, pass);
      EXPECT_TRUE(close(output, expected, tolerance_of(type))) << "output, " << when;
      if (x.is_floating_point()) {
        EXPECT_TRUE(close(grad_input, x.grad(), tolerance_of(type)))
            << "gradient of the input, " << when;
      }
      expect_gradients(stack, leaves, when);
    };
    stack.begin_step();
    run(1, "first micro-batch");
    run(2, "second micro-batch");
    stack.begin_step();
    leaves = leaves_of(stack);
    run(3, "next step");
  }
}

at::Tensor plain_norm(const at::Tensor& x, const Leaves& p, const std::string& name) {
  const at::Tensor centred = x - x.mean(-1, true);
  const at::Tensor variance = (centred * centred).mean(-1, true);
  return centred / (variance + 1e-5).sqrt() * p.at(name + ".weight") + p.at(name + ".bias");
}

at::Tensor plain_linear(const at::Tensor& x, const Leaves& p, const std::string& name) {
  return x.matmul(p.at(name + ".weight")) + p.at(name + ".bias");
}

at::Tensor plain_attention(const at::Tensor& qkv, std::int64_t head_count) {
  const auto b = qkv.size(0), t = qkv.size(1), head = qkv.size(2) / 3 / head_count;
  const auto by_head = [&](const at::Tensor& x) {
    return x.reshape({b, t, head_count, head}).transpose(1, 2);
  };
  const auto parts = qkv.chunk(3, 2);
  const at::Tensor q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);
  const at::Tensor future = at::ones({t, t}, at::kBool).triu(1);
  const at::Tensor scores = (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(head)))
                                .masked_fill(future, -std::numeric_limits<double>::infinity());
  return scores.softmax(-1).matmul(v).transpose(1, 2).reshape({b, t, head_count * head});
}

at::Tensor plain_gelu(const at::Tensor& x) {
  return 0.5 * x * (1 + (std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)).tanh());
}

// The factors that dropout multiplies by. By default nothing is dropped.
struct Factors {
  at::Tensor attended = at::ones({}, at::kDouble), contracted = at::ones({}, at::kDouble);
};

at::Tensor plain_block(const at::Tensor& x, const Leaves& p, int index, std::int64_t head_count,
                       const Factors& factors = {}) {
  const std::string name = "transformer.h." + std::to_string(index) + ".";
  const at::Tensor qkv = plain_linear(plain_norm(x, p, name + "ln_1"), p, name + "attn.c_attn");
  const at::Tensor middle = x + factors.attended * plain_linear(plain_attention(qkv, head_count), p,
                                                                name + "attn.c_proj");
  const at::Tensor hidden =
      plain_gelu(plain_linear(plain_norm(middle, p, name + "ln_2"), p, name + "mlp.c_fc"));
  return middle + factors.contracted * plain_linear(hidden, p, name + "mlp.c_proj");
}

at::Tensor plain_embedding(const at::Tensor& input, const Leaves& p) {
  return p.at("transformer.wte.weight").index({input}) +
         p.at("transformer.wpe.weight").narrow(0, 0, input.size(1));
}

at::Tensor plain_logits(const at::Tensor& x, const Leaves& p, const std::string& weight) {
  return plain_norm(x, p, "transformer.ln_f").matmul(p.at(weight).t());
}

at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& target) {
  return (logits.logsumexp(-1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)).mean();
}

// Wraps a building block, which is not a layer by itself, in a layer.
template <class Piece>
class PieceLayer : public Layer {
 public:
  void declare(Declaration& declaration) override;
  at::Tensor forward(const at::Tensor& x, Pass& pass) override;
  at::Tensor backward(const at::Tensor& grad, Pass& pass) override;

 private:
  Piece piece_;
};

template <>
void PieceLayer<Linear>::declare(Declaration& declaration) {
  piece_.declare(declaration, "linear", width, 13, 0.02);
}
template <>
at::Tensor PieceLayer<Linear>::forward(const at::Tensor& x, Pass& pass) {
  pass.saved = {x};
  return piece_.forward(x);
}
template <>
at::Tensor PieceLayer<Linear>::backward(const at::Tensor& grad, Pass& pass) {
  return piece_.backward(grad, pass.saved[0], pass);
}

template <>
void PieceLayer<LayerNorm>::declare(Declaration& declaration) {
  piece_.declare(declaration, "norm", width);
}
template <>
at::Tensor PieceLayer<LayerNorm>::forward(const at::Tensor& x, Pass& pass) {
  auto [y, mean, rstd] = piece_.forward(x);
  pass.saved = {x, mean, rstd};
  return y;
}
template <>
at::Tensor PieceLayer<LayerNorm>::backward(const at::Tensor& grad, Pass& pass) {
  return piece_.backward(grad, pass.saved[0], pass.saved[1], pass.saved[2]);
}

TEST(Linear, HasTheGradientsOfItsFormula) {
  expect_like_autograd(
      [] { return std::make_unique<PieceLayer<Linear>>(); },
      [](const at::Tensor& x, const Leaves& p) { return plain_linear(x, p, "linear"); },
      [](std::uint64_t key) {
        return noise({batch * tokens, width}, key);
      });
}

TEST(LayerNorm, HasTheGradientsOfItsFormula) {
  expect_like_autograd(
      [] { return std::make_unique<PieceLayer<LayerNorm>>(); },
      [](const at::Tensor& x, const Leaves& p) { return plain_norm(x, p, "norm"); },
      [](std::uint64_t key) {
        return noise({batch * tokens, width}, key) * 3 + 1;
      });
}

TEST(Attention, HasTheGradientsOfItsFormula) {
  struct Case {
    std::int64_t batch, tokens, heads, head_width;
  };
  for (const auto& [b, t, h, w] : {Case{3, 7, 3, 5}, Case{1, 1, 1, 1}, Case{2, 1, 2, 3},
                                   Case{5, 33, 1, 8}, Case{1, 300, 2, 16}}) {
    const at::Tensor qkv = noise({b, t, 3 * h * w}, 1), grad = noise({b, t, h * w}, 2);
    std::vector<at::Tensor> saved = {at::zeros({1})};  // attention appends to it
    const at::Tensor out = attention(qkv, h, h, {}, saved);
    ASSERT_EQ(saved.size(), 1 + attention_saves);
    const at::Tensor grad_qkv = attention_backward(grad, qkv, out, h, h, {}, &saved[1]);

    const at::Tensor leaf = qkv.clone().set_requires_grad(true);
    const at::Tensor expected = plain_attention(leaf, h);
    expected.backward(grad);
    const std::string sizes_here = std::to_string(b) + "x" + std::to_string(t) + ", " +
                                   std::to_string(h) + " heads of " + std::to_string(w);
    EXPECT_TRUE(close(out, expected, tolerance)) << sizes_here;
    EXPECT_TRUE(close(grad_qkv, leaf.grad(), tolerance)) << sizes_here;
  }
}

TEST(Attention, SeesNothingOfTheFuture) {
  const at::Tensor qkv = noise({1, tokens, 3 * width}, 1);
  std::vector<at::Tensor> unused;
  const at::Tensor before = attention(qkv, heads, heads, {}, unused);
  at::Tensor changed = qkv.clone();
  changed.narrow(1, 4, 3).add_(5);
  EXPECT_TRUE(close(attention(changed, heads, heads, {}, unused).narrow(1, 0, 4),
                    before.narrow(1, 0, 4), 0));
}

TEST(GptEmbedding, HasTheGradientsOfItsFormula) {
  expect_like_autograd([] { return std::make_unique<GptEmbedding>(sizes); }, plain_embedding,
                       [](std::uint64_t key) {
                         return ids({batch, tokens}, vocab, key);
                       });
}

TEST(GptEmbedding, AddsSequencesOfDifferentLengths) {
  Stack stack;
  stack.add(std::make_unique<GptEmbedding>(sizes));
  fill(stack);
  Leaves leaves = leaves_of(stack);
  stack.begin_step();
  for (const std::int64_t length : {3, 9, 5}) {
    const at::Tensor input = ids({2, length}, vocab, static_cast<std::uint64_t>(length));
    const at::Tensor grad = noise({2, length, width}, 5);
    Pass pass;
    stack.layer(0).forward(input, pass);
    stack.layer(0).backward(grad, pass);
    plain_embedding(input, leaves).backward(grad);
    expect_gradients(stack, leaves, "after one more sequence");
  }
}

TEST(GptEmbedding, SumsTheGradientsOfNarrowTypesToo) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    Stack stack;
    stack.add(std::make_unique<GptEmbedding>(sizes));
    stack.allocate(at::kCPU, type, Gradients::yes);
    stack.load(random_values(1));
    at::Tensor(stack.grads()).fill_(std::nan(""));
    Leaves leaves;
    for (const auto& p : stack.parameters())
      leaves[p.name] = p.value.to(at::kDouble).set_requires_grad(true);
    stack.begin_step();
    for (const std::uint64_t key : {1, 2}) {
      const at::Tensor input = ids({batch, tokens}, vocab, key);
      const at::Tensor grad = noise({batch, tokens, width}, key).to(type);
      Pass pass;
      stack.layer(0).forward(input, pass);
      stack.layer(0).backward(grad, pass);
      plain_embedding(input, leaves).backward(grad.to(at::kDouble));
    }
    for (const auto& p : stack.parameters()) {
      EXPECT_TRUE(close(p.grad, leaves[p.name].grad(), type == at::kFloat ? 1e-6 : 1e-2)) << p.name;
    }
  }
}

TEST(GptBlock, HasTheGradientsOfItsFormula) {
  expect_like_autograd(
      [] { return std::make_unique<GptBlock>(sizes, 1); },
      [](const at::Tensor& x, const Leaves& p) { return plain_block(x, p, 1, heads); },
      [](std::uint64_t key) {
        return noise({batch, tokens, width}, key);
      });
}

// The head's loss and gradients against the formula, each micro-batch with its weight.
void expect_head(const ModelOptions& options, std::int64_t rows, std::int64_t length) {
  Stack stack;
  stack.add(std::make_unique<GptHead>(options));
  fill(stack);
  Leaves leaves = leaves_of(stack);
  stack.begin_step();
  for (const auto& [key, weight] : {std::pair<std::uint64_t, double>{1, 0.25}, {2, 0.75}}) {
    const at::Tensor input = noise({rows, length, options.width}, key),
                     target = ids({rows, length}, options.vocab, key);
    Pass pass;
    pass.target = target;
    pass.weight = weight;
    const at::Tensor loss = stack.layer(0).forward(input, pass);
    const at::Tensor grad_input = stack.layer(0).backward({}, pass);

    const at::Tensor x = input.clone().set_requires_grad(true);
    const at::Tensor expected = plain_loss(plain_logits(x, leaves, "lm_head.weight"), target);
    (expected * weight).backward();
    EXPECT_TRUE(close(loss, expected, tolerance));
    EXPECT_TRUE(close(grad_input, x.grad(), tolerance));
    expect_gradients(stack, leaves, "weighted");

    Pass looking;
    looking.target = target;
    looking.training = false;
    EXPECT_TRUE(close(stack.layer(0).forward(input, looking), expected, tolerance))
        << "loss without training";
    EXPECT_TRUE(looking.saved.empty()) << "evaluation keeps nothing";
  }
}

TEST(GptHead, HasTheGradientsOfItsFormula) {
  ModelOptions untied = sizes;
  untied.tied = false;
  expect_head(untied, batch, tokens);
}

TEST(GptHead, WorksThroughAVocabularyInBlocksOfRows) {
  // 40009 logits of 8 bytes: a block of 4 MiB holds 13 rows, so 35 rows are two full blocks and a
  // partial one.
  expect_head({.layers = 1, .width = 3, .heads = 1, .vocab = 40009, .context = 7, .tied = false}, 5,
              7);
}

TEST(GptHead, GivesTheLogitsWithoutATarget) {
  ModelOptions untied = sizes;
  untied.tied = false;
  Stack stack;
  stack.add(std::make_unique<GptHead>(untied));
  fill(stack);
  const at::Tensor x = noise({batch, tokens, width}, 1);
  EXPECT_TRUE(
      close(stack.infer(x), plain_logits(x, leaves_of(stack), "lm_head.weight"), tolerance));
}

// Masks as dropout itself draws them (dropout_test.cpp), in the plain formula, whether the block
// keeps or recomputes what its backward needs.
TEST(GptBlock, HasTheGradientsOfItsFormulaWithDropoutAndRecompute) {
  ModelOptions options = sizes;
  options.dropout = 0.3;
  for (const Pass::Run run : {Pass::Run::once, Pass::Run::first})
    for (const bool selective : {false, true}) {
      Stack stack;
      stack.add(std::make_unique<GptBlock>(options, 1));
      fill(stack);
      Leaves leaves = leaves_of(stack);
      const at::Tensor input = noise({batch, tokens, width}, 1),
                       grad_output = noise({batch, tokens, width}, 2);
      Pass pass;
      pass.run = run;
      pass.selective = selective;
      pass.draw = {5, at::full({}, 3, at::kLong), 20};
      const auto factor = [&](const char* place) {
        return Dropout(0.3, place).forward(at::ones({batch, tokens, width}, at::kDouble), pass);
      };
      const Factors factors{factor("transformer.h.1.attn"), factor("transformer.h.1.mlp")};
      EXPECT_GT(factors.attended.eq(0).sum().item<double>(), 0);
      EXPECT_FALSE(at::equal(factors.attended, factors.contracted));
      const at::Tensor x = input.clone().set_requires_grad(true);
      const at::Tensor expected = plain_block(x, leaves, 1, heads, factors);
      expected.backward(grad_output);

      at::NoGradGuard no_grad;
      stack.begin_step();
      const at::Tensor output = stack.layer(0).forward(input, pass);
      if (run == Pass::Run::first) {
        EXPECT_TRUE(pass.saved.empty());
        pass.run = Pass::Run::again;
        stack.layer(0).forward(input, pass);
      }
      EXPECT_TRUE(close(output, expected, tolerance));
      EXPECT_TRUE(close(stack.layer(0).backward(grad_output, pass), x.grad(), tolerance));
      expect_gradients(stack, leaves, selective ? "selective" : "everything kept");
    }
}

TEST(GptEmbedding, HasTheGradientsOfItsFormulaWithDropout) {
  ModelOptions options = sizes;
  options.dropout = 0.3;
  Stack stack;
  stack.add(std::make_unique<GptEmbedding>(options));
  fill(stack);
  Leaves leaves = leaves_of(stack);
  const at::Tensor input = ids({batch, tokens}, vocab, 1),
                   grad_output = noise({batch, tokens, width}, 2);
  Pass pass;
  pass.draw = {5, at::full({}, 3, at::kLong), 20};
  const at::Tensor expected =
      plain_embedding(input, leaves) *
      Dropout(0.3, "transformer.drop").forward(at::ones({batch, tokens, width}, at::kDouble), pass);
  expected.backward(grad_output);
  at::NoGradGuard no_grad;
  stack.begin_step();
  EXPECT_TRUE(close(stack.layer(0).forward(input, pass), expected, tolerance));
  stack.layer(0).backward(grad_output, pass);
  expect_gradients(stack, leaves, "with dropout");
}

// The whole model, layer by layer, as an executor runs it. With tied embeddings the gradients of
// both uses add up.
TEST(Gpt, HasTheGradientsOfItsFormula) {
  for (const bool tied : {true, false}) {
    ModelOptions options = sizes;
    options.tied = tied;
    Stack stack = gpt(options);
    fill(stack);
    Leaves leaves = leaves_of(stack);
    stack.begin_step();
    for (const std::uint64_t key : {1, 2}) {  // two micro-batches
      const at::Tensor input = ids({batch, tokens}, vocab, key),
                       target = ids({batch, tokens}, vocab, key + 10);
      std::vector<Pass> passes(static_cast<std::size_t>(stack.size()));
      passes.back().target = target;
      at::Tensor x = input;
      for (int i = 0; i < stack.size(); ++i)
        x = stack.layer(i).forward(x, passes[static_cast<std::size_t>(i)]);
      at::Tensor grad;
      for (int i = stack.size(); i-- > 0;)
        grad = stack.layer(i).backward(grad, passes[static_cast<std::size_t>(i)]);
      EXPECT_FALSE(grad.defined()) << "tokens have no gradient";

      at::Tensor y = plain_embedding(input, leaves);
      for (int i = 0; i < options.layers; ++i) y = plain_block(y, leaves, i, heads);
      const at::Tensor loss = plain_loss(
          plain_logits(y, leaves, tied ? "transformer.wte.weight" : "lm_head.weight"), target);
      loss.backward();
      EXPECT_TRUE(close(x, loss, tolerance));
      EXPECT_TRUE(close(stack.infer(input, target), loss, tolerance));
      expect_gradients(stack, leaves, tied ? "tied" : "untied");
    }
    double in_padding = stack.grads().isnan().sum().item<double>(), padding = 0;
    for (const auto& unit : stack.units()) {
      padding += static_cast<double>(unit.numel);
      for (const auto& segment : unit.segments) padding -= static_cast<double>(segment.numel);
    }
    EXPECT_EQ(in_padding, padding) << "every gradient is written, and nothing between them";
  }
}

// A sum of ones that is kept in bf16 stops at 256.
TEST(Gradients, OfBf16TablesAreSummedInFp32) {
  Stack stack = gpt({.layers = 1, .width = 6, .heads = 3, .vocab = vocab, .context = 8});
  stack.allocate(at::kCPU, at::kBFloat16, Gradients::yes);
  stack.load(random_values(1));
  stack.begin_step();
  const at::Tensor input = at::zeros({512, 8}, at::kLong);
  Pass pass = stack.pass_for(0, std::make_shared<Batch>(Batch{input, {}}));
  const at::Tensor output = stack.layer(0).forward(input, pass);
  stack.layer(0).backward(at::ones_like(output), pass);
  EXPECT_EQ(stack.find("transformer.wte.weight")->grad[0][0].item<double>(), 512 * 8);
  EXPECT_EQ(stack.find("transformer.wpe.weight")->grad[0][0].item<double>(), 512);
}

}  // namespace
}  // namespace echelon
