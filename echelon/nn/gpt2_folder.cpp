#include "echelon/nn/gpt2_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"
#include "echelon/nn/tensor_file.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view prefix = "transformer.";
constexpr const char* tokeniser_key = "echelon_tokeniser";

json read_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (!fs::is_directory(folder))
    throw InvalidArgument(
        fmt::format("there is no folder {} to read weights from", folder.string()));
  if (!fs::exists(path))
    throw InvalidArgument(fmt::format("{} has no config.json", folder.string()));
  const std::string text = read_file(path);
  JsonReader::parse(text, path.string());  // says where it is not JSON
  json config = json::parse(text);
  if (!config.is_object()) throw Corrupt(fmt::format("{} is not a JSON object", path.string()));
  return config;
}

// The value of `key`, which must be a positive integer where it is there; `fallback` below zero: it
// must be there.
std::int64_t integer(const json& config, const char* key, std::int64_t fallback,
                     const fs::path& folder) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) {
    if (fallback >= 0) return fallback;
    throw Corrupt(fmt::format("{} has no {}", (folder / "config.json").string(), key));
  }
  if (!it->is_number_unsigned() || it->get<std::uint64_t>() == 0 ||
      it->get<std::uint64_t>() > (1u << 30)) {
    throw Corrupt(fmt::format("{}: {} is {}, not a positive number of reasonable size",
                              (folder / "config.json").string(), key, it->dump()));
  }
  return it->get<std::int64_t>();
}

const safetensors::Entry* entry_of(const safetensors::Reader& reader, const std::string& name) {
  if (const auto* entry = reader.find(name)) return entry;
  return name.starts_with(prefix) ? reader.find(std::string_view(name).substr(prefix.size()))
                                  : nullptr;
}

}  // namespace

ModelOptions read_gpt2_options(const fs::path& folder) {
  const json config = read_config(folder);
  const auto require = [&](const char* key, const json& wanted) {
    const auto it = config.find(key);
    if (it != config.end() && !it->is_null() && *it != wanted) {
      throw InvalidArgument(fmt::format("{} has {} = {}; Echelon's GPT is built for {}",
                                        folder.string(), key, it->dump(), wanted.dump()));
    }
  };
  require("model_type", "gpt2");
  require("activation_function", "gelu_new");
  require("layer_norm_epsilon", 1e-5);
  require("scale_attn_weights", true);
  require("scale_attn_by_inverse_layer_idx", false);
  require("add_cross_attention", false);
  ModelOptions options;
  options.layers = integer(config, "n_layer", -1, folder);
  options.width = integer(config, "n_embd", -1, folder);
  options.heads = integer(config, "n_head", -1, folder);
  options.vocab = integer(config, "vocab_size", -1, folder);
  options.context = integer(config, "n_positions", -1, folder);
  options.tied = config.value("tie_word_embeddings", json(true)) != json(false);
  options.init = folder.string();
  require("n_inner", 4 * options.width);
  return options;
}

void require_byte_tokens(const fs::path& folder) {
  const json config = read_config(folder);
  const json said = config.value(tokeniser_key, json());
  if (said == "bytes") return;
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(fmt::format(
        "the weights in {} were trained on tokens that are not bytes ({}), and text is read as "
        "bytes: Echelon has no tokenisers yet; use weights that were trained on bytes, or write "
        "\"{}\": \"bytes\" into config.json there if these were",
        folder.string(), what, tokeniser_key));
  };
  if (!said.is_null()) refuse(fmt::format("{} = {}", tokeniser_key, said.dump()));
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                           "vocab.json", "merges.txt", "spiece.model"})
    if (fs::exists(folder / name)) refuse(fmt::format("{} is beside them", name));
  const auto vocab = integer(config, "vocab_size", -1, folder);
  if (vocab != 256) refuse(fmt::format("vocab_size = {}, where bytes need 256", vocab));
}

ValueSource gpt2_values(const fs::path& folder, const Stack& stack) {
  const fs::path path = folder / "model.safetensors";
  if (!fs::exists(path)) {
    throw InvalidArgument(
        fmt::format("{} has no model.safetensors{}", folder.string(),
                    fs::exists(folder / "model.safetensors.index.json")
                        ? "; weights in several files are not read, save them as one"
                        : ""));
  }
  auto reader = std::make_shared<const safetensors::Reader>(path);
  for (const auto& parameter : stack.parameters()) {
    const auto* entry = entry_of(*reader, parameter.name);
    if (entry == nullptr)
      throw InvalidArgument(fmt::format("{} has no tensor {}", path.string(), parameter.name));
    const auto shape = parameter.whole_shape();
    if (entry->shape != shape) {
      throw InvalidArgument(fmt::format("{} in {} has shape [{}]; the model needs [{}]",
                                        entry->name, path.string(), fmt::join(entry->shape, ", "),
                                        fmt::join(shape, ", ")));
    }
    if (!at::isFloatingType(type_of(*reader, *entry))) {
      throw InvalidArgument(fmt::format("{} in {} has type {}, not a floating-point one",
                                        entry->name, path.string(), entry->dtype));
    }
  }
  return parts_of([reader](const Parameter& parameter, at::Tensor out) {
    out.copy_(tensor_of(*reader, *entry_of(*reader, parameter.name)));
  });
}

void write_gpt2_folder(const fs::path& folder, const ModelOptions& options, const Stack& stack,
                       at::ScalarType type,
                       const std::function<at::Tensor(const Parameter&)>& value, Tokens tokens) {
  fs::create_directories(folder);
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : stack.parameters())
    tensors.push_back({parameter.name, parameter.whole_shape(), type,
                       [&value, &parameter] { return value(parameter); }});
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  json config = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
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
  };
  if (tokens == Tokens::bytes) config[tokeniser_key] = "bytes";
  write_file(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace echelon
