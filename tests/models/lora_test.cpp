#include "echelon/models/lora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "echelon/base/error.h"
#include "echelon/models/weights_folder.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

ModelOptions adapted(const std::string& family, std::vector<std::string> matrices) {
  ModelOptions options{
      .family = family, .layers = 2, .width = 24, .heads = 6, .vocab = 17, .context = 8};
  if (family == "llama") options.llama = {.kv_heads = 3, .ffn = 21};
  options.lora = {.rank = 3, .alpha = 7.5, .matrices = std::move(matrices)};
  return options;
}

ModelOptions classifier(bool distilled) {
  ModelOptions options = adapted("bert", {"all"});
  options.bert.token_types = distilled ? 0 : 2;
  options.task = {.name = ModelTask::classify, .labels = 3};
  return options;
}

// B is not zero, or A would have no gradient.
void random_everywhere(const Parameter& parameter, const at::Tensor& out) {
  if (parameter.splits != Splits::low_rank_out) return random_values(5)(parameter, out);
  at::manual_seed(std::accumulate(parameter.name.begin(), parameter.name.end(), 0u));
  at::Tensor(out).copy_(at::randn(out.sizes(), out.options()) * 0.1);
}

Stack filled(const ModelOptions& options, const ValueSource& source) {
  Stack stack = family_of(options).build(options);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  stack.load(source);
  return stack;
}

// The loss of two samples, and all gradients.
double step(Stack& stack, const ModelOptions& options) {
  const at::NoGradGuard no_grad;
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(options.vocab, {2, options.context}, at::kLong),
                   target = options.task.labels > 0
                                ? at::randint(options.task.labels, {2}, at::kLong)
                                : at::randint(options.vocab, {2, options.context}, at::kLong);
  const auto batch = std::make_shared<const Batch>(Batch{tokens, target});
  std::vector<Pass> passes;
  Tensors x = stack.inputs_of(*batch);
  stack.begin_step();
  for (int l = 0; l < stack.size(); ++l) {
    passes.push_back(stack.pass_for(l, batch));
    x = stack.layer(l).forward_all(x, passes.back());
  }
  Tensors grads = {at::Tensor()};
  for (int l = stack.size() - 1; l >= 0; --l)
    grads = stack.layer(l).backward_all(grads, passes[std::size_t(l)]);
  return x.front().item<double>();
}

at::Tensor value_of(const Stack& stack, const std::string& name) { return stack.find(name)->value; }

// The values of the same model without LoRA: what write_weights writes.
ValueSource merged_values(const Stack& stack) {
  return [&stack](const Parameter& parameter, const at::Tensor& out) {
    const auto product = parameter.name.substr(0, parameter.name.rfind('.'));
    const LowRank* low_rank =
        parameter.name.ends_with(".weight") ? stack.low_rank(product) : nullptr;
    const at::Tensor value = value_of(stack, parameter.name);
    at::Tensor(out).copy_(low_rank ? merged(*low_rank, value, value_of(stack, low_rank_a(product)),
                                            value_of(stack, low_rank_b(product)))
                                   : value);
  };
}

// With D the gradient of W + scale A B, that of A is scale D B^T and that of B is scale A^T D.
void expect_gradients_of_the_dense_model(const ModelOptions& options) {
  Stack ours = filled(options, random_everywhere);
  ModelOptions plain = options;
  plain.lora = {};
  Stack dense = filled(plain, merged_values(ours));
  EXPECT_NEAR(step(ours, options), step(dense, plain), 1e-12);
  int products = 0;
  for (const auto& parameter : ours.parameters()) {
    if (is_low_rank(parameter)) continue;
    if (parameter.trainable) {
      EXPECT_TRUE(close(parameter.grad, dense.find(parameter.name)->grad, 1e-12)) << parameter.name;
      continue;
    }
    EXPECT_FALSE(parameter.grad.defined()) << parameter.name;
    const auto product = parameter.name.substr(0, parameter.name.rfind('.'));
    const LowRank* low_rank =
        parameter.name.ends_with(".weight") ? ours.low_rank(product) : nullptr;
    if (!low_rank) continue;
    ++products;
    const Parameter &a = *ours.find(low_rank_a(product)), &b = *ours.find(low_rank_b(product));
    const at::Tensor d = dense.find(parameter.name)->grad;
    const at::Tensor of_a = at::zeros_like(a.value), of_b = at::zeros_like(b.value);
    std::int64_t begin = 0;
    for (const auto& columns : low_rank->columns) {
      const auto factor = columns.factor * low_rank->rank;
      const at::Tensor of_columns = d.narrow(1, columns.begin, columns.size),
                       b_columns = b.value.narrow(1, begin, columns.size),
                       a_factor = a.value.narrow(1, factor, low_rank->rank);
      of_a.narrow(1, factor, low_rank->rank).add_(of_columns.mm(b_columns.t()), low_rank->scale);
      of_b.narrow(1, begin, columns.size).add_(a_factor.t().mm(of_columns), low_rank->scale);
      begin += columns.size;
    }
    EXPECT_GT(of_a.norm().item<double>(), 1e-6) << product;
    EXPECT_TRUE(close(a.grad, of_a, 1e-12)) << a.name;
    EXPECT_TRUE(close(b.grad, of_b, 1e-12)) << b.name;
  }
  EXPECT_GT(products, 0);
}

TEST(Lora, HasTheGradientsOfTheDenseModelInEveryFamily) {
  using Names = std::vector<std::string>;
  for (const char* family : {"gpt2", "llama", "bert"})
    for (const Names& matrices : {Names{"query", "value"}, Names{"key"}, Names{"attention"},
                                  Names{"mlp"}, Names{"all"}, Names{"value", "up", "output"}}) {
      SCOPED_TRACE(std::string(family) + " " + matrices.front());
      expect_gradients_of_the_dense_model(adapted(family, matrices));
    }
}

TEST(Lora, TrainsTheHeadOfAClassificationWhole) {
  for (const bool distilled : {false, true}) {
    const ModelOptions options = classifier(distilled);
    expect_gradients_of_the_dense_model(options);
    std::vector<std::string> whole;
    const Stack stack = family_of(options).build(options);
    for (const auto& parameter : stack.parameters())
      if (parameter.trainable && !is_low_rank(parameter)) whole.push_back(parameter.name);
    const std::string pooler = distilled ? "pre_classifier" : "bert.pooler.dense";
    EXPECT_EQ(whole, (std::vector<std::string>{pooler + ".weight", pooler + ".bias",
                                               "classifier.weight", "classifier.bias"}));
  }
}

TEST(Lora, StartsAsTheModelWas) {
  const ModelOptions options = adapted("llama", {"all"});
  ModelOptions plain = options;
  plain.lora = {};
  Stack ours = filled(options, random_values(5)), dense = filled(plain, random_values(5));
  EXPECT_EQ(step(ours, options), step(dense, plain));
}

TEST(Lora, SelectsMatricesByRoleGroupAndName) {
  const auto selected = [](const std::string& family, std::vector<std::string> matrices) {
    std::vector<std::string> names;
    const Stack stack = family_of(adapted(family, matrices)).build(adapted(family, matrices));
    for (const auto& parameter : stack.parameters())
      if (parameter.splits == Splits::low_rank_out && parameter.layer == 1)
        names.push_back(adapted_product(parameter) + " " + std::to_string(parameter.shape[1]));
    return names;
  };
  using Names = std::vector<std::string>;
  const std::string gpt2 = "transformer.h.0.", llama = "model.layers.0.";
  EXPECT_EQ(selected("gpt2", {"query", "value"}), (Names{gpt2 + "attn.c_attn 48"}));
  EXPECT_EQ(selected("gpt2", {"c_attn"}), (Names{gpt2 + "attn.c_attn 72"}));
  EXPECT_EQ(selected("llama", {"query", "value"}), (Names{llama + "self_attn.qkv_proj 36"}));
  EXPECT_EQ(selected("llama", {"up_proj"}), (Names{llama + "mlp.gate_up_proj 21"}));
  EXPECT_EQ(selected("llama", {"layers.0.*.o_proj"}), (Names{llama + "self_attn.o_proj 24"}));
  EXPECT_EQ(selected("llama", {"layers.1.*"}), Names{});
  EXPECT_EQ(selected("llama", {"mlp"}),
            (Names{llama + "mlp.gate_up_proj 42", llama + "mlp.down_proj 24"}));
}

TEST(Lora, RefusesWhatSelectsNothingOrContradicts) {
  const auto refusal = [](const std::function<void(ModelOptions&)>& change) {
    ModelOptions options = adapted("llama", {"query"});
    change(options);
    return thrown<InvalidArgument>([&] { family_of(options).build(options); });
  };
  EXPECT_EQ(refusal([](auto& o) {
              o.lora.matrices = {"query", "qproj"};
            }),
            "model.lora.matrices has qproj, and no matrix of the model has this role or name: give "
            "query, key, value, output, gate, up, down, attention, mlp or all, or a name such as "
            "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(refusal([](auto& o) { o.lora.matrices = {}; }),
            "model.lora.matrices is empty, so nothing would be trained: name some, or set "
            "model.lora.rank=0");
  EXPECT_EQ(refusal([](auto& o) {
              o.lora = {};
              o.lora.alpha = 32;
            }),
            "model.lora.alpha = 32.0 is an option of LoRA: leave it out, or set model.lora.rank");
  EXPECT_EQ(refusal([](auto& o) { o.lora.init = "adapter"; }),
            "model.lora.init = adapter is an adapter of a model, and there is none: give the "
            "model's folder as model.init");
  EXPECT_EQ(refusal([](auto& o) { o.lora.merge = false; }),
            "model.lora.merge=false writes only the adapter, and the model that it belongs to is "
            "in no folder: give model.init, or leave it out");
}

// A model and its adapter as folders, and what they should give.
struct Folders {
  explicit Folders(ModelOptions of) : options(std::move(of)), base(options) {
    options.init = (folder.path() / "base").string();
    base.lora = {};
    stack.emplace(filled(options, random_everywhere));
    const auto value = [&](const Parameter& parameter) { return value_of(*stack, parameter.name); };
    const Stack plain = family_of(base).build(base);
    write_weights(options.init, base, plain, at::kDouble, value);
    write_adapter(adapter(), options, *stack, at::kDouble, value);
    write_weights(folder.path() / "merged", options, *stack, at::kDouble, value);
  }
  std::string adapter() const { return (folder.path() / "adapter").string(); }

  ScratchFolder folder;
  ModelOptions options, base;
  std::optional<Stack> stack;
};

void expect_same_values(const Stack& ours, const Stack& theirs) {
  for (const auto& parameter : ours.parameters())
    EXPECT_TRUE(close(parameter.value, value_of(theirs, parameter.name), 0)) << parameter.name;
}

TEST(Lora, AnAdapterIsReadBackAsItWas) {
  for (const ModelOptions& of :
       {adapted("gpt2", {"query", "value"}), adapted("gpt2", {"all"}),
        adapted("llama", {"key", "up"}), adapted("bert", {"down", "query"}), classifier(false),
        classifier(true)}) {
    const Folders folders(of);
    SCOPED_TRACE(of.family + " " + of.lora.matrices.front());
    // By its own folder, which names the base, and beside the base.
    for (const bool alone : {true, false}) {
      ModelOptions options{.init = alone ? folders.adapter() : folders.options.init};
      if (!alone) options.lora.init = folders.adapter();
      options.lora.matrices = of.lora.matrices;
      std::vector<std::string> given = {"model.init"};
      if (!alone) given.emplace_back("model.lora.init");
      if (of.lora.matrices != std::vector<std::string>{"query", "value"} && !alone)
        given.emplace_back("model.lora.matrices");
      if (of.task.labels > 0) options.task = of.task;
      resolve_model(options, given);
      EXPECT_EQ(options.lora.rank, 3);
      EXPECT_EQ(options.lora.alpha, 7.5);
      Stack read =
          filled(options, read_weights(options.init, options, *folders.stack, random_values(9)));
      Stack expected = filled(folders.options, random_everywhere);
      EXPECT_NEAR(step(read, options), step(expected, folders.options), 1e-12);
      if (given.size() == 3) expect_same_values(read, expected);
    }
  }
}

TEST(Lora, AMergedFolderIsTheAdaptedModelWithoutAdapter) {
  for (const ModelOptions& of : {adapted("gpt2", {"query", "value"}), adapted("llama", {"all"}),
                                 adapted("bert", {"mlp"}), classifier(true)}) {
    const Folders folders(of);
    const auto folder = folders.folder.path() / "merged";
    const ModelOptions options = read_model_options(folder);
    EXPECT_EQ(options.lora.rank, 0);
    Stack plain = family_of(options).build(options);
    Stack read = filled(options, read_weights(folder, options, plain));
    Stack expected = filled(folders.options, random_everywhere);
    EXPECT_NEAR(step(read, options), step(expected, folders.options), 1e-12) << of.family;
  }
}

TEST(Lora, RefusesAnAdapterThatDoesNotFit) {
  const Folders folders(adapted("llama", {"query", "value"}));
  const auto refusal = [&](const std::function<void(ModelOptions&)>& change,
                           const std::vector<std::string>& given) {
    ModelOptions options{.init = folders.options.init};
    options.lora.init = folders.adapter();
    change(options);
    return thrown<InvalidArgument>([&] {
      resolve_model(options, given);
      const Stack stack = family_of(options).build(options);
      read_weights(options.init, options, stack);
    });
  };
  const std::string weights = folders.adapter() + "/adapter_model.safetensors";
  EXPECT_EQ(
      refusal([](auto& o) { o.lora.rank = 4; }, {"model.lora.rank"}),
      "model.lora.rank = 4, but the adapter in " + folders.adapter() + " has 3: leave it out");
  EXPECT_EQ(refusal([](auto& o) { o.lora.matrices = {"query"}; }, {"model.lora.matrices"}),
            weights +
                " has base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight, which is "
                "none of the adapted model's: model.lora.matrices must name all that the adapter "
                "adapts");
  EXPECT_EQ(refusal(
                [](auto& o) {
                  o.lora.matrices = {"query", "value", "up"};
                },
                {"model.lora.matrices"}),
            weights + " has no tensor base_model.model.model.layers.0.mlp.up_proj.lora_A.weight");
  std::ofstream(folders.adapter() + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 3, "lora_alpha": 7.5, "use_dora": true})";
  EXPECT_EQ(refusal([](auto&) {}, {}),
            folders.adapter() +
                "/adapter_config.json has use_dora = true, which Echelon's LoRA does not have");
}

// What the options of an adapter say that its tensors do not show.
std::string refusal_of_config(const Folders& folders, const std::string& more) {
  std::ofstream(folders.adapter() + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 3, "lora_alpha": 7.5)" << more << "}";
  ModelOptions options{.init = folders.options.init};
  options.lora.init = folders.adapter();
  try {
    resolve_model(options, {});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Lora, RefusesAnAdapterOfAnotherFormula) {
  const Folders folders(adapted("llama", {"query", "value"}));
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"init_lora_weights", R"("pissa")"},
           {"init_lora_weights", R"("pissa_niter_16")"},
           {"init_lora_weights", R"("olora")"},
           {"init_lora_weights", R"("corda")"},
           {"init_lora_weights", R"("eva")"},
           {"init_lora_weights", R"("loftq")"},
           {"init_lora_weights", "3"},
           {"alora_invocation_tokens", "[3,4]"},
           {"use_rslora", "true"},
           {"use_qalora", "true"},
           {"rank_pattern", R"({"q_proj":4})"},
           {"trainable_token_indices", "[1]"},
           {"arrow_config", R"({"top_k":3})"},
           {"bias", R"("all")"},
           {"of_a_newer_peft", "0.5"}})
    EXPECT_EQ(refusal_of_config(folders, ", \"" + key + "\": " + value),
              folders.adapter() + "/adapter_config.json has " + key + " = " + value +
                  ", which Echelon's LoRA does not have");
}

// As PEFT 0.18 writes it.
TEST(Lora, TakesAnAdapterWithTheUsualOptionsOfPeft) {
  const Folders folders(adapted("llama", {"query", "value"}));
  EXPECT_EQ(refusal_of_config(folders, R"(,
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
    "base_model_name_or_path": "meta/llama", "bias": "none", "corda_config": null,
    "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
    "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
    "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
    "loftq_config": {}, "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "peft_version": "0.18.0",
    "qalora_group_size": 16, "rank_pattern": {}, "revision": null,
    "target_modules": ["q_proj", "v_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
    "trainable_token_indices": null, "use_dora": false, "use_qalora": false, "use_rslora": false)"),
            "");
  EXPECT_EQ(refusal_of_config(folders, R"(, "init_lora_weights": "gaussian")"), "");
}

TEST(Lora, AnAdapterKeepsTheNamesOfItsLabelsAndAFrozenHead) {
  ModelOptions of = classifier(false);
  of.task.label_names = {"no", "perhaps", "yes"};
  const Folders folders(of);
  ModelOptions nameless = folders.base;  // or the names would come from the base
  nameless.task.label_names.clear();
  write_weights(
      folders.options.init, nameless, family_of(nameless).build(nameless), at::kDouble,
      [&](const Parameter& parameter) { return value_of(*folders.stack, parameter.name); });
  EXPECT_EQ(read_model_options(folders.adapter()).task.label_names, of.task.label_names);
  ModelOptions beside{.init = folders.options.init};
  beside.lora.init = folders.adapter();
  resolve_model(beside, {});
  EXPECT_EQ(beside.task.label_names, of.task.label_names);
  Stack stack = family_of(folders.options).build(folders.options);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  std::vector<std::string> names;
  for (const auto& parameter : stack.parameters()) {
    Parameter frozen = parameter;
    frozen.trainable = false;
    if (is_in_adapter(folders.options, frozen)) names.push_back(parameter.name);
    EXPECT_EQ(is_in_adapter(folders.options, frozen), parameter.trainable) << parameter.name;
  }
  EXPECT_EQ(names.back(), "classifier.bias");
}

// At bf16's width of a step, the addition would be lost in the rounding of the sum.
TEST(Lora, MergesInFullPrecisionWhateverTypeTheMatrixHas) {
  const LowRank low_rank{.rank = 1, .columns = {{0, 2, 0}}};
  const at::Tensor one = at::ones({2, 2}, at::kBFloat16);
  const at::Tensor sum =
      merged(low_rank, one, at::full({2, 1}, 1e-3, at::kFloat), at::ones({1, 2}, at::kFloat));
  EXPECT_EQ(sum.scalar_type(), at::kDouble);
  EXPECT_TRUE(close(sum, at::full({2, 2}, 1.001, at::kDouble), 1e-9));
}

TEST(Lora, SplitsAnAdaptationWithItsProduct) {
  const ModelOptions options = adapted("llama", {"query", "value", "output", "down", "up"});
  Stack whole = family_of(options).build(options);
  for (int rank = 0; rank < 3; ++rank) {
    Stack part = family_of(options).build(options);
    apply(family_of(options).split(options), part, 3, rank);
    const auto shape = [&](const std::string& name) { return part.find(name)->shape; };
    using Shape = std::vector<std::int64_t>;
    const std::string block = "model.layers.1.";
    EXPECT_EQ(shape(block + "self_attn.qkv_proj.lora_A.weight"), (Shape{24, 6}));
    EXPECT_EQ(shape(block + "self_attn.qkv_proj.lora_B.weight"), (Shape{3, 12}));
    EXPECT_EQ(shape(block + "self_attn.o_proj.lora_A.weight"), (Shape{8, 3}));
    EXPECT_EQ(shape(block + "self_attn.o_proj.lora_B.weight"), (Shape{3, 24}));
    // Of 24 queries and 12 values, the rank's own: its heads.
    const at::Tensor b = at::arange(3 * 36).view({3, 36});
    const at::Tensor mine =
        part_of(b, part.find(block + "self_attn.qkv_proj.lora_B.weight")->split);
    EXPECT_TRUE(
        close(mine, at::cat({b.narrow(1, 8 * rank, 8), b.narrow(1, 24 + 4 * rank, 4)}, 1), 0));
  }
}

}  // namespace
}  // namespace echelon
