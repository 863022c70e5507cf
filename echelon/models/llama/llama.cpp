#include "echelon/models/llama/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "echelon/base/error.h"
#include "echelon/models/llama/llama_block.h"
#include "echelon/models/llama/llama_ends.h"
#include "echelon/models/lora.h"
#include "echelon/nn/rotary.h"

namespace echelon {
namespace {

constexpr std::array tasks = {ModelTask::causal};

std::int64_t usual_ffn(std::int64_t width) { return ((8 * width + 2) / 3 + 63) / 64 * 64; }

void check_sizes(const ModelOptions& options) {
  const auto refuse = [](const std::string& why) { throw InvalidArgument(why); };
  const auto largest_divisor = [](std::int64_t of, std::int64_t below) {
    while (of % below != 0) --below;
    return below;
  };
  if (options.width % options.heads != 0)
    refuse(fmt::format("model.heads = {} does not divide model.width = {}: set model.heads={}",
                       options.heads, options.width,
                       largest_divisor(options.width, options.heads)));
  const LlamaSizes sizes(options);
  if (sizes.head_width % 2 != 0)
    refuse(
        fmt::format("a head of model.width / model.heads = {} / {} = {} numbers cannot be rotated "
                    "in pairs by rotary positions: it must be even",
                    options.width, options.heads, sizes.head_width));
  if (sizes.heads % sizes.kv_heads != 0)
    refuse(
        fmt::format("model.kv_heads = {} does not divide model.heads = {}: set model.kv_heads={}",
                    sizes.kv_heads, sizes.heads,
                    largest_divisor(sizes.heads, std::min(sizes.heads, sizes.kv_heads))));
  if (options.llama.rope_factor < 1)
    refuse(fmt::format("model.rope_factor = {} would shorten wavelengths: give at least 1",
                       options.llama.rope_factor));
  if (options.llama.rope_factor != 1 && options.llama.rope_low >= options.llama.rope_high)
    refuse(fmt::format("model.rope_low = {} must be below model.rope_high = {}",
                       options.llama.rope_low, options.llama.rope_high));
  // Far more than any machine holds, and far below the overflow of byte counts.
  const double width = static_cast<double>(options.width);
  const double parameters = width * (static_cast<double>(options.layers) *
                                         (2 * width + 2 * width + 3.0 * double(sizes.ffn)) +
                                     2.0 * static_cast<double>(options.vocab));
  if (parameters > 1e15)
    refuse(
        fmt::format("a model of {:.0e} parameters fits no machine; give smaller model.width, "
                    "model.layers, model.ffn or model.vocab",
                    parameters));
}

// docs/models.md has the terms; the additional memory of a block's backward was measured.
std::vector<LayerActivations> activations(const ModelOptions& options,
                                          const ActivationShape& shape) {
  const LlamaSizes sizes(options);
  const auto d = std::uint64_t(options.width), ffn = std::uint64_t(sizes.ffn);
  const auto qkv = std::uint64_t(sizes.all_heads() * sizes.head_width);
  const std::uint64_t element = shape.element(), tokens = shape.tokens;
  // With tensor parallelism a rank has a part of the outputs of products, and with sequence
  // parallelism a part of the rest too.
  const auto of = [&](std::uint64_t products, std::uint64_t others) {
    return (products / shape.tensor + others / shape.by_rows()) * element;
  };
  const std::uint64_t narrow = (2 / shape.by_rows() + std::uint64_t(sizes.heads) / shape.tensor) *
                               std::max<std::uint64_t>(4, element);
  const std::uint64_t whole = of(qkv + d + 3 * ffn, 4 * d) + narrow;
  const std::uint64_t kept = options.recompute == Recompute::full ? of(0, d)
                             : options.recompute == Recompute::selective
                                 ? of(qkv + d + 2 * ffn, 2 * d) + narrow
                                 : whole;
  // The gradients of gate and up. If torch computes them, also their factors, and norms in fp32.
  const bool own_kernels = shape.type == at::kFloat && !shape.cuda;
  const std::uint64_t busy = own_kernels ? of(2 * ffn, 0) : of(3 * ffn, 0) + 2 * d * element;
  const std::uint64_t backward = options.recompute == Recompute::full ? whole - of(0, d) + busy
                                 : options.recompute == Recompute::selective ? busy + of(ffn, 0)
                                                                             : busy;
  const std::uint64_t stream = stream_bytes(options, shape);
  std::vector<LayerActivations> layers = {{.backward = stream}};
  layers.resize(std::size_t(options.layers) + 1, {.kept = tokens * kept,
                                                  .put_off = tokens * (whole - narrow),
                                                  .backward = stream + tokens * backward});
  layers.push_back(loss_activations(options, shape));
  return layers;
}

std::string describe(const ModelOptions& options) {
  const LlamaSizes sizes(options);
  return fmt::format(
      "{} layer{}, width {}, {} head{}{}, hidden {}, context {}", options.layers,
      options.layers == 1 ? "" : "s", options.width, options.heads, options.heads == 1 ? "" : "s",
      sizes.kv_heads == sizes.heads ? "" : fmt::format(" on {} of keys and values", sizes.kv_heads),
      sizes.ffn, options.context);
}

std::vector<ProductMatrices> products(const ModelOptions& options) {
  const LlamaSizes sizes(options);
  const auto d = options.width, queries = sizes.heads * sizes.head_width,
             keys = sizes.kv_heads * sizes.head_width;
  std::vector<ProductMatrices> all;
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string attention = fmt::format("model.layers.{}.self_attn.", i),
                      mlp = fmt::format("model.layers.{}.mlp.", i);
    all.push_back({attention + "qkv_proj",
                   {{attention + "q_proj", {{"query", queries}}},
                    {attention + "k_proj", {{"key", keys}}},
                    {attention + "v_proj", {{"value", keys}}}}});
    all.push_back({attention + "o_proj", {{attention + "o_proj", {{"output", d}}}}});
    all.push_back(
        {mlp + "gate_up_proj",
         {{mlp + "gate_proj", {{"gate", sizes.ffn}}}, {mlp + "up_proj", {{"up", sizes.ffn}}}}});
    all.push_back({mlp + "down_proj", {{mlp + "down_proj", {{"down", d}}}}});
  }
  return all;
}

void fields(ModelOptions& options, Fields& f) { options.llama.fields(f); }

}  // namespace

const Family llama_family = {
    .name = "llama",
    .title = "Llama",
    .tasks = tasks,
    .check = check_sizes,
    .build = llama,
    .split = llama_plan,
    .products = products,
    .activations = activations,
    .describe = describe,
    .read_config = read_llama_config,
    .write_config = write_llama_config,
    .weights = llama_weights,
    .prefix = "model.",
    .any_context = true,
    .fields = fields,
};

LlamaSizes::LlamaSizes(const ModelOptions& options)
    : heads(options.heads),
      kv_heads(options.llama.kv_heads > 0 ? options.llama.kv_heads : options.heads),
      head_width(options.width / options.heads),
      ffn(options.llama.ffn > 0 ? options.llama.ffn : usual_ffn(options.width)) {}

Stack llama(const ModelOptions& options) {
  check(options);
  const LlamaSizes sizes(options);
  const auto rotary =
      std::make_shared<Rotary>(RotaryOptions{.head_width = sizes.head_width,
                                             .context = options.context,
                                             .base = options.llama.rope_base,
                                             .factor = options.llama.rope_factor,
                                             .low = options.llama.rope_low,
                                             .high = options.llama.rope_high,
                                             .original_context = options.llama.rope_context});
  Stack stack(lora_plan(options));
  stack.add(std::make_unique<LlamaEmbedding>(options));
  for (int i = 0; i < options.layers; ++i)
    stack.add(std::make_unique<LlamaBlock>(options, i, rotary));
  stack.add(std::make_unique<LlamaHead>(options));
  stack.recompute(options.recompute);
  return stack;
}

SplitPlan llama_plan(const ModelOptions& options) {
  const LlamaSizes sizes(options);
  SplitPlan plan;
  plan.vocabulary("model.embed_tokens");
  plan.heads("model.layers.*.self_attn.qkv_proj", sizes.heads, sizes.kv_heads)
      .row("model.layers.*.self_attn.o_proj");
  plan.column("model.layers.*.mlp.gate_up_proj", /*blocks=*/2).row("model.layers.*.mlp.down_proj");
  if (!options.tied) plan.vocabulary("lm_head");
  return plan;
}

}  // namespace echelon
