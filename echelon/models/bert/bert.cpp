#include "echelon/models/bert/bert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "echelon/base/error.h"
#include "echelon/models/bert/bert_block.h"
#include "echelon/models/bert/bert_embedding.h"
#include "echelon/models/bert/bert_heads.h"
#include "echelon/models/lora.h"

namespace echelon {
namespace {

constexpr std::array tasks = {ModelTask::mlm, ModelTask::classify};

void check_sizes(const ModelOptions& options) {
  const auto refuse = [](const std::string& why) { throw InvalidArgument(why); };
  if (options.width % options.heads != 0) {
    std::int64_t fewer = options.heads;
    while (options.width % fewer != 0) --fewer;
    refuse(fmt::format("model.heads = {} does not divide model.width = {}: set model.heads={}",
                       options.heads, options.width, fewer));
  }
  const BertSizes sizes(options);
  if (sizes.distilled && options.bert.norm_epsilon != BertOptions().norm_epsilon)
    refuse(fmt::format(
        "model.bert.norm_epsilon = {}, but a DistilBERT (model.bert.token_types=0) always has {}: "
        "leave it out",
        options.bert.norm_epsilon, BertOptions().norm_epsilon));
  // Far more than any machine holds, and far below the overflow of byte counts.
  const double width = static_cast<double>(options.width);
  const double parameters =
      width * (static_cast<double>(options.layers) * (4 * width + 2.0 * double(sizes.ffn)) +
               2.0 * static_cast<double>(options.vocab) + static_cast<double>(options.context) +
               static_cast<double>(options.bert.token_types));
  if (parameters > 1e15)
    refuse(
        fmt::format("a model of {:.0e} parameters fits no machine; give smaller model.width, "
                    "model.layers, model.bert.ffn, model.vocab or model.context",
                    parameters));
}

// Of a block; docs/models.md has the terms, and the additional memory of its backward was measured.
LayerActivations block_activations(const ModelOptions& options, const ActivationShape& shape) {
  const auto d = std::uint64_t(options.width), h = std::uint64_t(options.heads),
             ffn = std::uint64_t(BertSizes(options).ffn);
  const std::uint64_t element = shape.element(), tokens = shape.tokens;
  // With tensor parallelism a rank has a part of the outputs of products, and with sequence
  // parallelism a part of the rest too.
  const auto of = [&](std::uint64_t products, std::uint64_t others) {
    return (products / shape.tensor + others / shape.by_rows()) * element;
  };
  const std::uint64_t narrow =
      (4 / shape.by_rows() + h / shape.tensor) * std::max<std::uint64_t>(4, element);
  const std::uint64_t whole = of(4 * d + 2 * ffn, 4 * d) + narrow;
  const bool full = options.recompute == Recompute::full,
             selective = options.recompute == Recompute::selective;
  const std::uint64_t kept = full ? of(0, d) : selective ? of(4 * d + ffn, 3 * d) + narrow : whole;
  const std::uint64_t stream = stream_bytes(options, shape);
  const std::uint64_t backward = full        ? whole - kept + 5 * d * element
                                 : selective ? (4 * d + 2 * ffn) * element
                                             : 5 * d * element;
  return {.kept = tokens * kept,
          .put_off = tokens * of(4 * d + 2 * ffn, 4 * d),
          .forward = 0,
          .backward = stream + tokens * backward};
}

// Besides what a norm and the loss keep: the product's result and its activation.
LayerActivations masked_head_activations(const ModelOptions& options,
                                         const ActivationShape& shape) {
  LayerActivations loss = loss_activations(options, shape);
  const bool selective = options.recompute == Recompute::selective;
  const std::uint64_t rows = stream_bytes(options, shape) / shape.by_rows();
  loss.kept += (selective ? 1 : 2) * rows;
  loss.put_off += 2 * rows;
  loss.forward += selective ? rows : 0;
  loss.backward += rows;
  return loss;
}

LayerActivations class_head_activations(const ModelOptions& options, const ActivationShape& shape) {
  return {.kept = 0, .put_off = 0, .forward = 0, .backward = stream_bytes(options, shape)};
}

std::vector<LayerActivations> activations(const ModelOptions& options,
                                          const ActivationShape& shape) {
  const std::uint64_t stream = stream_bytes(options, shape);
  std::vector<LayerActivations> layers = {
      {.kept = stream / shape.by_rows(), .backward = 2 * stream}};
  layers.resize(std::size_t(options.layers) + 1, block_activations(options, shape));
  layers.push_back(task_of(options) == ModelTask::mlm ? masked_head_activations(options, shape)
                                                      : class_head_activations(options, shape));
  return layers;
}

std::string describe(const ModelOptions& options) {
  const BertSizes sizes(options);
  return fmt::format(
      "{}{} layer{}, width {}, {} head{}, hidden {}, context {}; {}",
      sizes.distilled ? "DistilBERT, " : "", options.layers, options.layers == 1 ? "" : "s",
      options.width, options.heads, options.heads == 1 ? "" : "s", sizes.ffn, options.context,
      task_of(options) == ModelTask::mlm ? std::string("masked words")
                                         : fmt::format("{} labels", options.task.labels));
}

std::vector<ProductMatrices> products(const ModelOptions& options) {
  const BertNames names(options);
  const BertSizes sizes(options);
  const auto d = options.width;
  std::vector<ProductMatrices> all;
  const auto add = [&](const std::string& name, const char* role, std::int64_t columns) {
    all.push_back({name, {{name, {{role, columns}}}}});
  };
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string block = names.block(i), qkv = block + names.qkv,
                      attention = qkv.substr(0, qkv.rfind('.') + 1);
    const auto three = bert_qkv(sizes.distilled);
    all.push_back({qkv,
                   {{attention + three[0], {{"query", d}}},
                    {attention + three[1], {{"key", d}}},
                    {attention + three[2], {{"value", d}}}}});
    add(block + names.project, "output", d);
    add(block + names.expand, "up", sizes.ffn);
    add(block + names.contract, "down", d);
  }
  return all;
}

void fields(ModelOptions& options, Fields& f) { f.section("bert", options.bert); }

}  // namespace

const Family bert_family = {
    .name = "bert",
    .title = "BERT",
    .tasks = tasks,
    .check = check_sizes,
    .build = bert,
    .split = bert_plan,
    .products = products,
    .activations = activations,
    .describe = describe,
    .read_config = read_bert_config,
    .write_config = write_bert_config,
    .weights = bert_weights,
    .prefix = "",  // bert_weights lists the names without one
    .also_reads = "distilbert",
    .fields = fields,
};

BertSizes::BertSizes(const ModelOptions& options)
    : ffn(options.bert.ffn > 0 ? options.bert.ffn : 4 * options.width),
      distilled(options.bert.token_types == 0) {}

BertNames::BertNames(const ModelOptions& options) {
  const bool distilled = BertSizes(options).distilled;
  body = distilled ? "distilbert." : "bert.";
  const std::string embeddings = body + "embeddings.";
  words = embeddings + "word_embeddings";
  positions = embeddings + "position_embeddings";
  token_types = embeddings + "token_type_embeddings";
  embedding_norm = embeddings + "LayerNorm";
  qkv = distilled ? "attention.qkv_lin" : "attention.self.qkv";
  project = distilled ? "attention.out_lin" : "attention.output.dense";
  norm1 = distilled ? "sa_layer_norm" : "attention.output.LayerNorm";
  expand = distilled ? "ffn.lin1" : "intermediate.dense";
  contract = distilled ? "ffn.lin2" : "output.dense";
  norm2 = distilled ? "output_layer_norm" : "output.LayerNorm";
  transform = distilled ? "vocab_transform" : "cls.predictions.transform.dense";
  transform_norm = distilled ? "vocab_layer_norm" : "cls.predictions.transform.LayerNorm";
  decoder = distilled ? "vocab_projector" : "cls.predictions.decoder";
  decoder_bias = distilled ? "vocab_projector" : "cls.predictions";
  pooler = distilled ? "pre_classifier" : body + "pooler.dense";
}

std::string BertNames::block(std::int64_t index) const {
  return fmt::format("{}{}.layer.{}.", body, body == "bert." ? "encoder" : "transformer", index);
}

Stack bert(const ModelOptions& options) {
  check(options);
  Stack stack(lora_plan(options));
  stack.add(std::make_unique<BertEmbedding>(options));
  for (std::int64_t i = 0; i < options.layers; ++i)
    stack.add(std::make_unique<BertBlock>(options, i));
  if (task_of(options) == ModelTask::mlm)
    stack.add(std::make_unique<BertMaskedHead>(options));
  else
    stack.add(std::make_unique<BertClassHead>(options));
  stack.recompute(options.recompute);
  return stack;
}

SplitPlan bert_plan(const ModelOptions& options) {
  const BertNames names(options);
  SplitPlan plan;
  plan.vocabulary(names.words);
  // By number: "layer.*.output.dense" would also match attention's.
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string block = names.block(i);
    plan.heads(block + names.qkv, options.heads).row(block + names.project);
    plan.column(block + names.expand).row(block + names.contract);
  }
  if (task_of(options) != ModelTask::mlm) return plan;
  plan.vocabulary(names.decoder_bias);
  if (!options.tied && std::string_view(names.decoder) != names.decoder_bias)
    plan.vocabulary(names.decoder);
  return plan;
}

}  // namespace echelon
