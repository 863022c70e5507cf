// Reads and writes Hugging Face's BertForMaskedLM and BertForSequenceClassification and the same of
// DistilBert; reads the bare BertModel and DistilBertModel too.
//
// The file of a bare model has no prefix ("embeddings.…" for "bert.embeddings.…"). Old files call
// the weight and bias of a norm gamma and beta. The bias over the vocabulary is
// "cls.predictions.bias" or "cls.predictions.decoder.bias", which are tied.
//
// config.json has several shares of dropout, and Echelon has one, model.dropout, which is that of
// the hidden states. The others (of attention weights, of the classification head) are written as
// the folder of model.init has them.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/models/bert/bert.h"
#include "echelon/models/folder_config.h"

namespace echelon {
namespace {

using nlohmann::json;

struct Keys {
  const char *layers, *width, *heads, *ffn, *activation, *dropout, *attention_dropout,
      *class_dropout;
};
constexpr Keys bert_keys = {.layers = "num_hidden_layers",
                            .width = "hidden_size",
                            .heads = "num_attention_heads",
                            .ffn = "intermediate_size",
                            .activation = "hidden_act",
                            .dropout = "hidden_dropout_prob",
                            .attention_dropout = "attention_probs_dropout_prob",
                            .class_dropout = "classifier_dropout"};
constexpr Keys distilbert_keys = {.layers = "n_layers",
                                  .width = "dim",
                                  .heads = "n_heads",
                                  .ffn = "hidden_dim",
                                  .activation = "activation",
                                  .dropout = "dropout",
                                  .attention_dropout = "attention_dropout",
                                  .class_dropout = "seq_classif_dropout"};
constexpr double usual_dropout = 0.1;  // transformers' default for `dropout` of both

const Keys& keys_of(bool distilled) { return distilled ? distilbert_keys : bert_keys; }

std::string class_of(const ModelOptions& options) {
  return fmt::format(
      "{}For{}", BertSizes(options).distilled ? "DistilBert" : "Bert",
      task_of(options) == ModelTask::classify ? "SequenceClassification" : "MaskedLM");
}

// Weights of any class have a body; those of a classification say their labels.
void read_task(const FolderConfig& config, TaskOptions& task) {
  task.name = ModelTask::mlm;
  for (const std::string& name : config.texts("architectures"))
    if (name.ends_with("ForSequenceClassification")) task.name = ModelTask::classify;
  if (task.name != ModelTask::classify) return;
  config.require(bert_family.title, "problem_type", "\"single_label_classification\"");
  task.label_names = config.numbered_texts("id2label");
  task.labels =
      task.label_names.empty() ? config.integer("num_labels", 2) : std::ssize(task.label_names);
}

// A share of dropout that Echelon only passes on. `otherwise` without model.init, or if its folder
// has no such share. The folder may also be gone by the time that weights are written.
json passed_on(const ModelOptions& options, const char* key, const json& otherwise) try {
  if (options.init.empty()) return otherwise;
  const FolderConfig config(options.init);
  return config.has(key) ? json(config.number(key, 0)) : otherwise;
} catch (const Error&) {
  return otherwise;
}

}  // namespace

ModelOptions read_bert_config(const FolderConfig& config) {
  const auto require = [&](const char* key, const std::string& wanted) {
    config.require(bert_family.title, key, wanted);
  };
  const bool distilled = config.text("model_type", "") == bert_family.also_reads;
  const Keys& keys = keys_of(distilled);
  require(keys.activation, "\"gelu\"");
  require("position_embedding_type", "\"absolute\"");
  require("is_decoder", "false");
  require("add_cross_attention", "false");
  require("sinusoidal_pos_embds", "false");
  ModelOptions options;
  options.layers = config.integer(keys.layers);
  options.width = config.integer(keys.width);
  options.heads = config.integer(keys.heads);
  options.vocab = config.integer("vocab_size");
  options.context = config.integer("max_position_embeddings");
  options.tied = config.flag("tie_word_embeddings", true);
  options.dropout = config.number(keys.dropout, usual_dropout);
  options.bert.ffn = config.integer(keys.ffn);
  options.bert.token_types = distilled ? 0 : config.integer("type_vocab_size", 2);
  if (!distilled)
    options.bert.norm_epsilon = config.number("layer_norm_eps", options.bert.norm_epsilon);
  read_task(config, options.task);
  return options;
}

std::string write_bert_config(const ModelOptions& options) {
  const BertSizes sizes(options);
  const Keys& keys = keys_of(sizes.distilled);
  json config = {
      {"architectures", {class_of(options)}},
      {"model_type", sizes.distilled ? bert_family.also_reads : bert_family.name},
      {keys.layers, options.layers},
      {keys.width, options.width},
      {keys.heads, options.heads},
      {keys.ffn, sizes.ffn},
      {keys.activation, "gelu"},
      {"max_position_embeddings", options.context},
      {"vocab_size", options.vocab},
      {"tie_word_embeddings", options.tied},
      {keys.dropout, options.dropout},
      {keys.attention_dropout, passed_on(options, keys.attention_dropout, 0.0)},
      // Null: a BERT's is that of the hidden states.
      {keys.class_dropout,
       passed_on(options, keys.class_dropout, sizes.distilled ? json(options.dropout) : json())},
  };
  if (sizes.distilled) {
    config["sinusoidal_pos_embds"] = false;
  } else {
    config["type_vocab_size"] = options.bert.token_types;
    config["layer_norm_eps"] = options.bert.norm_epsilon;
  }
  if (task_of(options) != ModelTask::classify) return config.dump();
  config["problem_type"] = "single_label_classification";
  for (std::int64_t label = 0; label < options.task.labels; ++label) {
    const std::string name = options.task.label_names.empty()
                                 ? fmt::format("LABEL_{}", label)
                                 : options.task.label_names[std::size_t(label)];
    config["id2label"][std::to_string(label)] = name;
    config["label2id"][name] = label;
  }
  return config.dump();
}

namespace {

// The head that a parameter belongs to; null: the body.
const char* head_of(const BertNames& names, std::string_view parameter) {
  const auto is_of = [&](std::string_view name) {
    return parameter == fmt::format("{}.weight", name) || parameter == fmt::format("{}.bias", name);
  };
  if (is_of(names.pooler)) return "pooler";
  if (is_of(names.classifier)) return "classifier";
  for (const char* name :
       {names.transform, names.transform_norm, names.decoder, names.decoder_bias})
    if (is_of(name)) return "head for masked words";
  return nullptr;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  return text.replace(text.rfind(what), what.size(), by);
}

void add_other_names(const BertNames& names, WeightPart& part) {
  auto& others = part.other_names;
  const bool in_body = part.name.starts_with(names.body);
  if (in_body) others.push_back(part.name.substr(names.body.size()));
  for (const auto& [now, before] : {std::pair{"LayerNorm.weight", "LayerNorm.gamma"},
                                    std::pair{"LayerNorm.bias", "LayerNorm.beta"}}) {
    if (!part.name.ends_with(now)) continue;
    others.push_back(replaced(part.name, now, before));
    if (in_body) others.push_back(replaced(others.front(), now, before));
  }
  if (part.name == "cls.predictions.bias") others.emplace_back("cls.predictions.decoder.bias");
}

}  // namespace

std::vector<WeightPart> bert_weights(const ModelOptions& options, const Parameter& parameter) {
  const BertNames names(options);
  const std::string& name = parameter.name;
  const auto shape = parameter.whole_shape();
  std::vector<WeightPart> parts;
  const std::string_view fused = names.qkv;
  const auto at = name.find(fused);
  const bool matrix = name.ends_with(".weight");
  if (at != std::string::npos) {
    const auto three = bert_qkv(BertSizes(options).distilled);
    const std::string before = name.substr(0, name.rfind('.', at + fused.size() - 1) + 1),
                      after = name.substr(at + fused.size());
    const auto d = options.width;
    for (std::size_t i = 0; i < three.size(); ++i) {
      const auto begin = std::int64_t(i) * d;
      parts.push_back({before + three[i] + after, matrix ? std::vector{d, d} : std::vector{d},
                       [begin, d, matrix](const at::Tensor& whole) {
                         return matrix ? whole.narrow(1, begin, d).t() : whole.narrow(0, begin, d);
                       }});
    }
  } else if (matrix && shape.size() == 2 && !name.starts_with(names.body + "embeddings.") &&
             name != std::string(names.decoder) + ".weight") {
    parts.push_back(
        {name, {shape[1], shape[0]}, [](const at::Tensor& whole) { return whole.t(); }});
  } else {
    parts.push_back({name, shape});
  }
  for (WeightPart& part : parts) {
    part.head = head_of(names, name);
    add_other_names(names, part);
  }
  return parts;
}

}  // namespace echelon
