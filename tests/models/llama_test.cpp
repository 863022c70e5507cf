#include "echelon/models/llama/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "echelon/base/error.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/tensor_file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

ModelOptions small() {
  ModelOptions options{
      .family = "llama", .layers = 2, .width = 24, .heads = 6, .vocab = 17, .context = 8};
  options.llama = {
      .kv_heads = 3, .ffn = 21, .rope_base = 100, .rope_factor = 8, .rope_context = 16};
  return options;
}

Stack filled(const ModelOptions& options, at::ScalarType type = at::kDouble) {
  Stack stack = llama(options);
  stack.allocate(at::kCPU, type, Gradients::yes);
  stack.load(random_values(3));
  return stack;
}

std::string refusal(const std::function<void(ModelOptions&)>& change) {
  ModelOptions options = small();
  change(options);
  return thrown<InvalidArgument>([&] { llama(options); });
}

TEST(Llama, HasTheParametersOfItsSizes) {
  const Stack stack = llama(small());
  const std::int64_t block = 24 + 24 * (24 + 2 * 12) + 24 * 24 + 24 + 24 * 42 + 21 * 24;
  EXPECT_EQ(stack.parameter_count(), 17 * 24 + 2 * block + 24);
  EXPECT_EQ(stack.ties().size(), 1u);
  ModelOptions untied = small();
  untied.tied = false;
  EXPECT_EQ(llama(untied).parameter_count(), 2 * 17 * 24 + 2 * block + 24);
}

TEST(Llama, ChoosesSizesThatAreNotGiven) {
  ModelOptions options{.family = "llama", .width = 160, .heads = 5};
  EXPECT_EQ(LlamaSizes(options).kv_heads, 5);
  EXPECT_EQ(LlamaSizes(options).ffn, 448);
  options.width = 4096;
  EXPECT_EQ(LlamaSizes(options).ffn, 10944);
}

TEST(Llama, IsRefusedWhereSizesDoNotFitTogether) {
  EXPECT_EQ(refusal([](auto& o) { o.heads = 7; }),
            "model.heads = 7 does not divide model.width = 24: set model.heads=6");
  EXPECT_EQ(refusal([](auto& o) { o.llama.kv_heads = 4; }),
            "model.kv_heads = 4 does not divide model.heads = 6: set model.kv_heads=3");
  EXPECT_EQ(refusal([](auto& o) { o.llama.kv_heads = 12; }),
            "model.kv_heads = 12 does not divide model.heads = 6: set model.kv_heads=6");
  EXPECT_EQ(refusal([](auto& o) { o.heads = 8; }),
            "a head of model.width / model.heads = 24 / 8 = 3 numbers cannot be rotated in "
            "pairs by rotary positions: it must be even");
  EXPECT_EQ(refusal([](auto& o) { o.llama.rope_factor = 0.5; }),
            "model.rope_factor = 0.5 would shorten wavelengths: give at least 1");
  EXPECT_EQ(refusal([](auto& o) { o.llama.rope_low = 4; }),
            "model.rope_low = 4 must be below model.rope_high = 4");
}

TEST(Llama, KeyValueHeadsThatDoNotDivideOverRanksAreRefused) {
  Stack stack = llama(small());
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { apply(llama_plan(small()), stack, 2, 0); }),
      "the 3 key-value heads of model.layers.0.self_attn.qkv_proj.weight cannot be shared out "
      "over parallel.tensor = 2: 2 or 4 could, or over tensor 1");
  apply(llama_plan(small()), stack, 3, 1);
  EXPECT_EQ(stack.find("model.layers.0.self_attn.qkv_proj.weight")->shape,
            (std::vector<std::int64_t>{24, 16}));
}

TEST(Llama, SeesNothingOfTheFuture) {
  Stack stack = filled(small());
  at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(8).remainder(17).view({1, 8});
  at::Tensor changed = tokens.clone();
  changed.narrow(1, 5, 3).add_(3);
  EXPECT_TRUE(close(stack.infer(changed).narrow(1, 0, 5), stack.infer(tokens).narrow(1, 0, 5), 0));
}

// Loss and gradients of one micro-batch, layer by layer as an executor runs them.
std::map<std::string, at::Tensor> gradients(const ModelOptions& options, bool defer_weight_grads) {
  Stack stack = filled(options);
  at::NoGradGuard no_grad;
  stack.begin_step();
  const at::Tensor drawn = at::arange(2 * 9).mul(7).remainder(17).view({2, 9});
  std::vector<Pass> passes(std::size_t(stack.size()));
  std::vector<at::Tensor> inputs = {drawn.narrow(1, 0, 8).contiguous()};
  for (int l = 0; l < stack.size(); ++l) {
    Pass& pass = passes[std::size_t(l)];
    pass.selective = options.recompute == Recompute::selective;
    pass.draw.step = at::zeros({}, at::kLong);
    pass.defer_weight_grads = defer_weight_grads;
    if (l + 1 == stack.size()) pass.target = drawn.narrow(1, 1, 8).contiguous();
    inputs.push_back(stack.layer(l).forward(inputs.back(), pass));
  }
  at::Tensor grad;
  for (int l = stack.size() - 1; l >= 0; --l) {
    Pass& pass = passes[std::size_t(l)];
    if (options.recompute == Recompute::full && l > 0 && l + 1 < stack.size()) {
      pass.saved.clear();
      pass.run = Pass::Run::again;
      stack.layer(l).forward(inputs[std::size_t(l)], pass);
    }
    grad = stack.layer(l).backward(grad, pass);
  }
  for (auto& pass : passes)
    for (const auto& work : pass.later) work();
  std::map<std::string, at::Tensor> all;
  all["loss"] = inputs.back();
  for (const auto& p : stack.parameters()) all[p.name] = p.grad.clone();
  return all;
}

TEST(Llama, HasTheSameGradientsWithRecomputeAndDeferredWeightGradients) {
  ModelOptions options = small();
  options.dropout = 0.2;
  options.tied = false;  // the two gradients of a tied table would be added in another order
  const auto plain = gradients(options, false);
  const auto expect_same = [&](const auto& other, std::string_view how) {
    for (const auto& [name, tensor] : plain) {
      EXPECT_TRUE(at::equal(other.at(name), tensor)) << name << ", " << how;
    }
  };
  expect_same(gradients(options, true), "weights later");
  for (const auto recompute : {Recompute::selective, Recompute::full}) {
    options.recompute = recompute;
    expect_same(gradients(options, false), name_of(recompute));
  }
}

TEST(Llama, FoldersKeepSizesAndEveryBit) {
  for (const bool tied : {true, false})
    for (const double factor : {1.0, 8.0}) {
      ModelOptions options = small();
      options.tied = tied;
      options.llama.rope_factor = factor;
      const Stack stack = filled(options, at::kFloat);
      const ScratchFolder folder;
      write_weights(folder.path(), options, stack, at::kFloat,
                    [](const Parameter& p) { return p.value; });
      const ModelOptions read = read_model_options(folder.path());
      EXPECT_EQ(read.family, "llama");
      EXPECT_EQ(read.layers, 2);
      EXPECT_EQ(read.width, 24);
      EXPECT_EQ(read.heads, 6);
      EXPECT_EQ(read.vocab, 17);
      EXPECT_EQ(read.context, 8);
      EXPECT_EQ(read.tied, tied);
      EXPECT_EQ(read.llama.kv_heads, 3);
      EXPECT_EQ(read.llama.ffn, 21);
      EXPECT_EQ(read.llama.norm_epsilon, 1e-5);
      EXPECT_EQ(read.llama.rope_base, 100);
      EXPECT_EQ(read.llama.rope_factor, factor);
      if (factor != 1) {
        EXPECT_EQ(read.llama.rope_context, 16);
      }
      Stack other = llama(read);
      other.allocate(at::kCPU, at::kFloat, Gradients::no);
      other.load(read_weights(folder.path(), read, other));
      for (const auto& p : stack.parameters()) {
        EXPECT_TRUE(at::equal(other.find(p.name)->value, p.value)) << p.name;
      }
      // In the file, queries, keys and values are separate tensors, and matrices are [out, in].
      const safetensors::Reader reader(folder / "model.safetensors");
      const at::Tensor& qkv = stack.find("model.layers.1.self_attn.qkv_proj.weight")->value;
      const auto there = [&](const std::string& name) {
        return tensor_of(reader, *reader.find("model.layers.1." + name + ".weight"));
      };
      EXPECT_TRUE(at::equal(there("self_attn.q_proj"), qkv.narrow(1, 0, 24).t()));
      EXPECT_TRUE(at::equal(there("self_attn.k_proj"), qkv.narrow(1, 24, 12).t()));
      EXPECT_TRUE(at::equal(there("self_attn.v_proj"), qkv.narrow(1, 36, 12).t()));
      EXPECT_EQ(there("mlp.up_proj").sizes().vec(), (std::vector<std::int64_t>{21, 24}));
    }
}

// A rank reads its part of each parameter from a folder: queries, keys and values of its own heads.
TEST(Llama, AFolderGivesEveryRankItsPart) {
  const Stack whole = filled(small(), at::kFloat);
  const ScratchFolder folder;
  write_weights(folder.path(), small(), whole, at::kFloat,
                [](const Parameter& p) { return p.value; });
  std::map<std::string, std::vector<at::Tensor>> parts;
  std::map<std::string, Split> splits;
  for (int rank = 0; rank < 3; ++rank) {
    Stack stack = llama(small());
    apply(llama_plan(small()), stack, 3, rank);
    stack.allocate(at::kCPU, at::kFloat, Gradients::no);
    stack.load(read_weights(folder.path(), small(), stack));
    for (const auto& p : stack.parameters()) {
      parts[p.name].push_back(p.value);
      splits[p.name] = p.split;
    }
  }
  for (const auto& p : whole.parameters()) {
    EXPECT_TRUE(at::equal(assemble(parts[p.name], splits[p.name]), p.value)) << p.name;
  }
}

}  // namespace
}  // namespace echelon
