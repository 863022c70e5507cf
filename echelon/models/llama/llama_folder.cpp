// Reads and writes Hugging Face's LlamaForCausalLM. Its config.json has rope_theta and rope_scaling
// (transformers 4) or both in rope_parameters (5). Echelon writes the former, which both versions
// read.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/models/folder_config.h"
#include "echelon/models/llama/llama.h"

namespace echelon {
namespace {

using nlohmann::json;

void read_rope(const FolderConfig& config, LlamaOptions& options) {
  options.rope_base = config.number("rope_theta", options.rope_base);
  const auto parameters = config.has("rope_parameters") ? config.section("rope_parameters")
                                                        : config.section("rope_scaling");
  if (!parameters) return;
  options.rope_base = parameters->number("rope_theta", options.rope_base);
  const std::string type = parameters->text("rope_type", parameters->text("type", "default"));
  if (type == "default") return;
  if (type != "llama3")
    throw InvalidArgument(
        fmt::format("{} has rotary positions of the type \"{}\"; Echelon's {} is built for "
                    "\"default\" and \"llama3\"",
                    config.folder().string(), type, llama_family.title));
  options.rope_factor = parameters->number("factor", options.rope_factor);
  options.rope_low = parameters->number("low_freq_factor", options.rope_low);
  options.rope_high = parameters->number("high_freq_factor", options.rope_high);
  options.rope_context =
      parameters->integer("original_max_position_embeddings", options.rope_context);
}

}  // namespace

ModelOptions read_llama_config(const FolderConfig& config) {
  const auto require = [&](const char* key, const std::string& wanted) {
    config.require(llama_family.title, key, wanted);
  };
  require("hidden_act", "\"silu\"");
  require("attention_bias", "false");
  require("mlp_bias", "false");
  ModelOptions options;
  options.layers = config.integer("num_hidden_layers");
  options.width = config.integer("hidden_size");
  options.heads = config.integer("num_attention_heads");
  options.vocab = config.integer("vocab_size");
  options.context = config.integer("max_position_embeddings");
  options.tied = config.flag("tie_word_embeddings", false);
  options.llama.kv_heads = config.integer("num_key_value_heads", options.heads);
  options.llama.ffn = config.integer("intermediate_size");
  options.llama.norm_epsilon = config.number("rms_norm_eps", 1e-6);
  read_rope(config, options.llama);
  if (options.width % options.heads == 0)
    require("head_dim", std::to_string(options.width / options.heads));
  return options;
}

std::string write_llama_config(const ModelOptions& options) {
  const LlamaSizes sizes(options);
  json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"num_hidden_layers", options.layers},
      {"hidden_size", options.width},
      {"num_attention_heads", options.heads},
      {"num_key_value_heads", sizes.kv_heads},
      {"head_dim", sizes.head_width},
      {"intermediate_size", sizes.ffn},
      {"max_position_embeddings", options.context},
      {"vocab_size", options.vocab},
      {"tie_word_embeddings", options.tied},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"rms_norm_eps", options.llama.norm_epsilon},
      {"rope_theta", options.llama.rope_base},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
  };
  if (options.llama.rope_factor != 1)
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", options.llama.rope_factor},
                              {"low_freq_factor", options.llama.rope_low},
                              {"high_freq_factor", options.llama.rope_high},
                              {"original_max_position_embeddings", options.llama.rope_context}};
  return config.dump();
}

// Columns of an [in, out] parameter that are one matrix of the file, [out, in].
std::vector<WeightPart> llama_weights(const ModelOptions& options, const Parameter& parameter) {
  const std::string& name = parameter.name;
  const auto shape = parameter.whole_shape();
  if (parameter.splits != Splits::matrix) return {{name, shape}};
  const LlamaSizes sizes(options);
  const auto queries = sizes.heads * sizes.head_width, keys = sizes.kv_heads * sizes.head_width;
  const auto cut = [&](const std::string& of,
                       const std::vector<std::pair<const char*, std::int64_t>>& into) {
    std::vector<WeightPart> parts;
    std::int64_t begin = 0;
    for (const auto& [to, columns] : into) {
      std::string there = name;
      parts.push_back({there.replace(there.find(of), of.size(), to),
                       {columns, shape[0]},
                       [begin, columns](const at::Tensor& whole) {
                         return whole.narrow(1, begin, columns).t();
                       }});
      begin += columns;
    }
    return parts;
  };
  if (name.ends_with("qkv_proj.weight"))
    return cut("qkv_proj", {{"q_proj", queries}, {"k_proj", keys}, {"v_proj", keys}});
  if (name.ends_with("gate_up_proj.weight"))
    return cut("gate_up_proj", {{"gate_proj", sizes.ffn}, {"up_proj", sizes.ffn}});
  return cut("_proj", {{"_proj", shape[1]}});
}

}  // namespace echelon
