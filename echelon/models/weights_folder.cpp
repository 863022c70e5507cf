#include "echelon/models/weights_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/options_section.h"
#include "echelon/models/family.h"
#include "echelon/models/folder_config.h"
#include "echelon/nn/tensor_file.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr const char* tokeniser_key = "echelon_tokeniser";

const safetensors::Entry* entry_of(const safetensors::Reader& reader, const Family& family,
                                   const std::string& name) {
  if (const auto* entry = reader.find(name)) return entry;
  const std::string_view prefix = family.prefix;
  return name.starts_with(prefix) ? reader.find(std::string_view(name).substr(prefix.size()))
                                  : nullptr;
}

void check_entry(const safetensors::Reader& reader, const Family& family, const WeightPart& part) {
  const auto* entry = entry_of(reader, family, part.name);
  if (entry == nullptr)
    throw InvalidArgument(fmt::format("{} has no tensor {}", reader.path().string(), part.name));
  if (entry->shape != part.shape) {
    throw InvalidArgument(fmt::format("{} in {} has shape [{}]; the model needs [{}]", entry->name,
                                      reader.path().string(), fmt::join(entry->shape, ", "),
                                      fmt::join(part.shape, ", ")));
  }
  if (!at::isFloatingType(type_of(reader, *entry))) {
    throw InvalidArgument(fmt::format("{} in {} has type {}, not a floating-point one", entry->name,
                                      reader.path().string(), entry->dtype));
  }
}

}  // namespace

ModelOptions read_model_options(const fs::path& folder) {
  const FolderConfig config(folder);
  const std::string type = config.text("model_type", ModelOptions().family);
  const Family* family = find_family(type);
  if (!family)
    throw InvalidArgument(fmt::format("{} has model_type = \"{}\"; Echelon's models are {}",
                                      folder.string(), type, fmt::join(family_names(), ", ")));
  ModelOptions options = family->read_config(config);
  options.family = family->name;
  options.init = folder.string();
  return options;
}

void resolve_model(ModelOptions& model, const std::vector<std::string>& given) {
  if (model.init.empty()) return;
  ModelOptions found = read_model_options(model.init);
  found.dropout = model.dropout;
  found.recompute = model.recompute;
  const auto was_given = [&](const std::string& key) {
    return std::find(given.begin(), given.end(), key) != given.end();
  };
  if (family_of(found).any_context && was_given("model.context")) found.context = model.context;
  const Fields ours = fields_in("model", model), theirs = fields_in("model", found);
  for (std::size_t i = 0; i < ours.all().size(); ++i) {
    const std::string& key = ours.all()[i].key;
    if (key == "model.init" || !was_given(key)) continue;
    const std::string mine = text_of(ours.all()[i]), other = text_of(theirs.all()[i]);
    if (mine != other)
      throw InvalidArgument(
          fmt::format("{} = {}, but the weights in {} are of a model with {}; leave it out", key,
                      mine, model.init, other));
  }
  model = found;
}

void require_byte_tokens(const fs::path& folder) {
  const FolderConfig config(folder);
  const std::string said = config.text(tokeniser_key, "");
  if (said == "bytes") return;
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(fmt::format(
        "the weights in {} were trained on tokens that are not bytes ({}), and text is read as "
        "bytes: Echelon has no tokenisers yet; use weights that were trained on bytes, or write "
        "\"{}\": \"bytes\" into config.json there if these were",
        folder.string(), what, tokeniser_key));
  };
  if (!said.empty()) refuse(fmt::format("{} = \"{}\"", tokeniser_key, said));
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                           "vocab.json", "merges.txt", "spiece.model"})
    if (fs::exists(folder / name)) refuse(fmt::format("{} is beside them", name));
  const auto vocab = config.integer("vocab_size");
  if (vocab != 256) refuse(fmt::format("vocab_size = {}, where bytes need 256", vocab));
}

ValueSource read_weights(const fs::path& folder, const ModelOptions& options, const Stack& stack) {
  const fs::path path = folder / "model.safetensors";
  if (!fs::exists(path)) {
    throw InvalidArgument(
        fmt::format("{} has no model.safetensors{}", folder.string(),
                    fs::exists(folder / "model.safetensors.index.json")
                        ? "; weights in several files are not read, save them as one"
                        : ""));
  }
  auto reader = std::make_shared<const safetensors::Reader>(path);
  const Family& family = family_of(options);
  for (const auto& parameter : stack.parameters())
    for (const auto& part : family.weights(options, parameter)) check_entry(*reader, family, part);
  return parts_of([reader, options, &family](const Parameter& parameter, at::Tensor out) {
    for (const auto& part : family.weights(options, parameter)) {
      const at::Tensor to = part.view ? part.view(out) : out;
      at::Tensor(to).copy_(
          tensor_of(*reader, *entry_of(*reader, family, part.name)).view(to.sizes()));
    }
  });
}

void write_weights(const fs::path& folder, const ModelOptions& options, const Stack& stack,
                   at::ScalarType type, const std::function<at::Tensor(const Parameter&)>& value,
                   Tokens tokens) {
  fs::create_directories(folder);
  const Family& family = family_of(options);
  std::vector<NamedTensor> tensors;
  at::Tensor whole;  // the parameter whose tensors are being written
  for (const auto& parameter : stack.parameters()) {
    const auto parts = family.weights(options, parameter);
    for (std::size_t i = 0; i < parts.size(); ++i)
      tensors.push_back({parts[i].name, parts[i].shape, type,
                         [&whole, &value, &parameter, part = parts[i], first = i == 0,
                          last = i + 1 == parts.size()] {
                           if (first) whole = value(parameter);
                           const at::Tensor out =
                               part.view ? part.view(whole).reshape(part.shape) : whole;
                           if (last) whole.reset();
                           return out;
                         }});
  }
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  auto config = nlohmann::json::parse(family.write_config(options));
  config["model_type"] = family.name;
  if (tokens == Tokens::bytes) config[tokeniser_key] = "bytes";
  write_file(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace echelon
