#include "echelon/models/gpt2/gpt2.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/models/folder_config.h"
#include "echelon/models/gpt2/gpt_block.h"
#include "echelon/models/gpt2/gpt_embedding.h"
#include "echelon/models/gpt2/gpt_head.h"
#include "echelon/models/lora.h"

namespace echelon {
namespace {

constexpr std::array tasks = {ModelTask::causal};

void check_sizes(const ModelOptions& options) {
  if (options.width % options.heads != 0) {
    std::int64_t fewer = options.heads;
    while (options.width % fewer != 0) --fewer;
    throw InvalidArgument(
        fmt::format("model.heads = {} does not divide model.width = {}: set model.heads={}",
                    options.heads, options.width, fewer));
  }
  // Far more than any machine holds, and far below the overflow of byte counts.
  const double width = static_cast<double>(options.width);
  const double parameters = 12.0 * static_cast<double>(options.layers) * width * width +
                            static_cast<double>(2 * options.vocab + options.context) * width;
  if (parameters > 1e15) {
    throw InvalidArgument(fmt::format(
        "a model of {:.0e} parameters fits no machine; give smaller model.width, model.layers, "
        "model.vocab or model.context",
        parameters));
  }
}

// docs/recompute.md has the terms; the additional memory of a block's backward was measured.
std::vector<LayerActivations> activations(const ModelOptions& options,
                                          const ActivationShape& shape) {
  const auto d = std::uint64_t(options.width), h = std::uint64_t(options.heads);
  const std::uint64_t element = shape.element(), tokens = shape.tokens;
  // With tensor parallelism a rank has a part of the outputs of products (12 of the 16 d elements
  // of a token), and with sequence parallelism a part of the rest too.
  const std::uint64_t narrow =
      (4 / shape.by_rows() + h / shape.tensor) * std::max<std::uint64_t>(4, element);
  const auto of = [&](std::uint64_t parts, std::uint64_t others) {
    return (parts * d / shape.tensor + others * d / shape.by_rows()) * element;
  };
  const std::uint64_t whole = of(12, 4) + narrow;
  const std::uint64_t kept = options.recompute == Recompute::full        ? of(0, 1)
                             : options.recompute == Recompute::selective ? of(8, 2) + narrow
                                                                         : whole;
  const std::uint64_t backward = options.recompute == Recompute::full
                                     ? whole - of(0, 1) + 5 * d * element
                                 : options.recompute == Recompute::selective ? 9 * d * element
                                                                             : 5 * d * element;
  const std::uint64_t stream = stream_bytes(options, shape);
  std::vector<LayerActivations> layers = {{.backward = stream}};
  layers.resize(std::size_t(options.layers) + 1, {.kept = tokens * kept,
                                                  .put_off = tokens * of(12, 4),
                                                  .backward = stream + tokens * backward});
  layers.push_back(loss_activations(options, shape));
  return layers;
}

std::string describe(const ModelOptions& options) {
  return fmt::format("{} layer{}, width {}, {} head{}, context {}", options.layers,
                     options.layers == 1 ? "" : "s", options.width, options.heads,
                     options.heads == 1 ? "" : "s", options.context);
}

ModelOptions read_config(const FolderConfig& config) {
  const auto require = [&](const char* key, const std::string& wanted) {
    config.require(gpt2_family.title, key, wanted);
  };
  require("activation_function", "\"gelu_new\"");
  require("layer_norm_epsilon", "1e-5");
  require("scale_attn_weights", "true");
  require("scale_attn_by_inverse_layer_idx", "false");
  require("add_cross_attention", "false");
  ModelOptions options;
  options.layers = config.integer("n_layer");
  options.width = config.integer("n_embd");
  options.heads = config.integer("n_head");
  options.vocab = config.integer("vocab_size");
  options.context = config.integer("n_positions");
  options.tied = config.flag("tie_word_embeddings", true);
  require("n_inner", std::to_string(4 * options.width));
  return options;
}

std::string write_config(const ModelOptions& options) {
  return nlohmann::json{
      {"architectures", {"GPT2LMHeadModel"}},
      {"n_layer", options.layers},
      {"n_embd", options.width},
      {"n_head", options.heads},
      {"n_positions", options.context},
      {"vocab_size", options.vocab},
      {"tie_word_embeddings", options.tied},
      {"activation_function", "gelu_new"},
      {"layer_norm_epsilon", 1e-5},
      {"attn_pdrop", 0.0},
      {"embd_pdrop", options.dropout},
      {"resid_pdrop", options.dropout},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
  }
      .dump();
}

std::vector<WeightPart> weights(const ModelOptions&, const Parameter& parameter) {
  return {{parameter.name, parameter.whole_shape()}};
}

std::vector<ProductMatrices> products(const ModelOptions& options) {
  const auto d = options.width;
  std::vector<ProductMatrices> all;
  const auto add = [&](const std::string& name, std::vector<ProductMatrices::Columns> columns) {
    all.push_back({name, {{name, std::move(columns)}}});
  };
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string block = fmt::format("transformer.h.{}.", i);
    add(block + "attn.c_attn", {{"query", d}, {"key", d}, {"value", d}});
    add(block + "attn.c_proj", {{"output", d}});
    add(block + "mlp.c_fc", {{"up", 4 * d}});
    add(block + "mlp.c_proj", {{"down", d}});
  }
  return all;
}

}  // namespace

const Family gpt2_family = {
    .name = "gpt2",
    .title = "GPT",
    .tasks = tasks,
    .check = check_sizes,
    .build = gpt,
    .split = gpt_plan,
    .products = products,
    .activations = activations,
    .describe = describe,
    .read_config = read_config,
    .write_config = write_config,
    .weights = weights,
    .prefix = "transformer.",
};

Stack gpt(const ModelOptions& options) {
  check(options);
  Stack stack(lora_plan(options));
  stack.add(std::make_unique<GptEmbedding>(options));
  for (int i = 0; i < options.layers; ++i) stack.add(std::make_unique<GptBlock>(options, i));
  stack.add(std::make_unique<GptHead>(options));
  stack.recompute(options.recompute);
  return stack;
}

SplitPlan gpt_plan(const ModelOptions& options) {
  SplitPlan plan;
  plan.vocabulary("transformer.wte");
  plan.heads("transformer.h.*.attn.c_attn", options.heads).row("transformer.h.*.attn.c_proj");
  plan.column("transformer.h.*.mlp.c_fc").row("transformer.h.*.mlp.c_proj");
  if (!options.tied) plan.vocabulary("lm_head");
  return plan;
}

}  // namespace echelon
