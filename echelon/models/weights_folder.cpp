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
#include "echelon/models/lora.h"
#include "echelon/nn/tensor_file.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr const char* tokeniser_key = "echelon_tokeniser";
constexpr const char* new_head_advice =
    "for a new head, start from the weights of the body alone, which transformers' "
    "AutoModel.from_pretrained(…).save_pretrained(…) writes";

const safetensors::Entry* entry_of(const safetensors::Reader& reader, const Family& family,
                                   const WeightPart& part) {
  if (const auto* entry = reader.find(part.name)) return entry;
  for (const std::string& name : part.other_names)
    if (const auto* entry = reader.find(name)) return entry;
  const std::string_view prefix = family.prefix;
  return !prefix.empty() && part.name.starts_with(prefix)
             ? reader.find(std::string_view(part.name).substr(prefix.size()))
             : nullptr;
}

void check_entry(const safetensors::Reader& reader, const Family& family, const WeightPart& part) {
  const auto* entry = entry_of(reader, family, part);
  if (entry == nullptr)
    throw InvalidArgument(fmt::format("{} has no tensor {}", reader.path().string(), part.name));
  if (entry->shape != part.shape) {
    if (part.head)
      throw InvalidArgument(fmt::format(
          "the {} in {} is of another size: {} has shape [{}], and this task needs [{}]; {}",
          part.head, reader.path().string(), entry->name, fmt::join(entry->shape, ", "),
          fmt::join(part.shape, ", "), new_head_advice));
    throw InvalidArgument(fmt::format("{} in {} has shape [{}]; the model needs [{}]", entry->name,
                                      reader.path().string(), fmt::join(entry->shape, ", "),
                                      fmt::join(part.shape, ", ")));
  }
  if (!at::isFloatingType(type_of(reader, *entry))) {
    throw InvalidArgument(fmt::format("{} in {} has type {}, not a floating-point one", entry->name,
                                      reader.path().string(), entry->dtype));
  }
}

const Family* family_that_reads(const std::string& model_type) {
  for (const Family* family : families())
    if (model_type == family->name || (family->also_reads && model_type == family->also_reads))
      return family;
  return nullptr;
}

// What "model_type" may be.
std::vector<std::string> model_types() {
  std::vector<std::string> all;
  for (const Family* family : families()) {
    all.emplace_back(family->name);
    if (family->also_reads) all.emplace_back(family->also_reads);
  }
  return all;
}

// The folder's task gives way to the user's, who gets a new head then. But the number of labels of
// a folder's classification is fixed.
void resolve_task(const TaskOptions& given, const std::string& init, TaskOptions& task) {
  if (given.name != ModelTask::automatic && given.name != task.name) {
    task = given;
    return;
  }
  if (task.name == ModelTask::classify && given.labels > 0 && given.labels != task.labels)
    throw InvalidArgument(
        fmt::format("task.labels = {}, but the weights in {} have a head for {} labels: leave it "
                    "out, or {}",
                    given.labels, init, task.labels, new_head_advice));
  if (!given.label_names.empty()) task.label_names = given.label_names;
  task.mask = given.mask;
}

}  // namespace

ModelOptions read_model_options(const fs::path& folder) {
  if (is_adapter(folder)) return read_adapter_options(folder);
  const FolderConfig config(folder);
  const std::string type = config.text("model_type", ModelOptions().family);
  const Family* family = family_that_reads(type);
  if (!family)
    throw InvalidArgument(fmt::format("{} has model_type = \"{}\"; Echelon's models are {}",
                                      folder.string(), type, fmt::join(model_types(), ", ")));
  ModelOptions options = family->read_config(config);
  options.family = family->name;
  options.init = folder.string();
  return options;
}

void resolve_model(ModelOptions& model, const std::vector<std::string>& given) {
  if (model.init.empty()) return resolve_lora(model, given);
  ModelOptions found = read_model_options(model.init);
  if (found.lora.init.empty()) {
    found.lora = model.lora;
    resolve_lora(found, given);
    if (!found.lora.init.empty()) read_adapter_task(found.lora.init, found);
  } else {
    found.lora.merge = model.lora.merge;
  }
  found.recompute = model.recompute;
  resolve_task(model.task, model.init, found.task);
  const auto was_given = [&](const std::string& key) {
    return std::find(given.begin(), given.end(), key) != given.end();
  };
  if (was_given("model.dropout")) found.dropout = model.dropout;
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

bool says_bytes(const fs::path& folder) {
  if (is_adapter(folder)) return says_bytes(read_adapter_options(folder).init);
  return FolderConfig(folder).text(tokeniser_key, "") == "bytes";
}

void require_byte_tokens(const fs::path& folder) {
  if (is_adapter(folder)) return require_byte_tokens(read_adapter_options(folder).init);
  const FolderConfig config(folder);
  const std::string said = config.text(tokeniser_key, "");
  if (said == "bytes") return;
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(fmt::format(
        "the weights in {} were trained on tokens that are not bytes ({}), and no tokeniser that "
        "Echelon reads is beside them: name the folder of theirs with data.tokenizer, or write "
        "\"{}\": \"bytes\" into config.json there if they were trained on bytes",
        folder.string(), what, tokeniser_key));
  };
  if (!said.empty()) refuse(fmt::format("{} = \"{}\"", tokeniser_key, said));
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                           "vocab.json", "merges.txt", "spiece.model"})
    if (fs::exists(folder / name)) refuse(fmt::format("{} is beside them", name));
  const auto vocab = config.integer("vocab_size");
  if (vocab != 256) refuse(fmt::format("vocab_size = {}, where bytes need 256", vocab));
}

namespace {

std::shared_ptr<const safetensors::Reader> open_weights(const fs::path& folder) {
  const fs::path path = folder / "model.safetensors";
  if (!fs::exists(path)) {
    throw InvalidArgument(
        fmt::format("{} has no model.safetensors{}", folder.string(),
                    fs::exists(folder / "model.safetensors.index.json")
                        ? "; weights in several files are not read, save them as one"
                        : ""));
  }
  return std::make_shared<const safetensors::Reader>(path);
}

// The tensors of a model's file that make up a parameter: none for an adaptation's.
std::vector<WeightPart> parts_of_file(const ModelOptions& options, const Parameter& parameter) {
  if (is_low_rank(parameter)) return {};
  return family_of(options).weights(options, parameter);
}

// Heads of which the file has no tensor at all.
std::vector<std::string> heads_not_in(const safetensors::Reader& reader,
                                      const ModelOptions& options, const Stack& stack) {
  const Family& family = family_of(options);
  std::vector<std::string> all, here;
  const auto add = [](std::vector<std::string>& to, const char* head) {
    if (std::find(to.begin(), to.end(), head) == to.end()) to.emplace_back(head);
  };
  for (const auto& parameter : stack.parameters())
    for (const auto& part : parts_of_file(options, parameter))
      if (part.head) {
        add(all, part.head);
        if (entry_of(reader, family, part)) add(here, part.head);
      }
  std::erase_if(all, [&](const std::string& head) {
    return std::find(here.begin(), here.end(), head) != here.end();
  });
  return all;
}

}  // namespace

std::vector<std::string> missing_heads(const fs::path& folder, const ModelOptions& options,
                                       const Stack& stack) {
  auto heads = heads_not_in(*open_weights(folder), options, stack);
  if (heads.empty() || options.lora.init.empty()) return heads;
  for (const auto& parameter : stack.parameters())
    for (const auto& part : parts_of_file(options, parameter))
      if (part.head && adapter_has(options.lora.init, part.name)) std::erase(heads, part.head);
  return heads;
}

namespace {

// For a head that neither an adapter nor its base has.
void refuse_head(const Parameter& parameter, const at::Tensor& /*out*/) {
  throw InvalidArgument(fmt::format("neither the adapter nor its model has {}", parameter.name));
}

}  // namespace

ValueSource read_weights(const fs::path& folder, const ModelOptions& options, const Stack& stack,
                         const ValueSource& heads) {
  if (is_adapter(folder)) return read_weights(options.init, options, stack, heads);
  if (!options.lora.init.empty()) {
    ModelOptions base = options;
    base.lora.init.clear();
    return read_adapter(options.lora.init, options, stack,
                        read_weights(folder, base, stack, heads ? heads : refuse_head));
  }
  const auto reader = open_weights(folder);
  const Family& family = family_of(options);
  const auto missing = heads ? heads_not_in(*reader, options, stack) : std::vector<std::string>();
  const auto is_missing = [missing](const WeightPart& part) {
    return part.head && std::find(missing.begin(), missing.end(), part.head) != missing.end();
  };
  for (const auto& parameter : stack.parameters())
    for (const auto& part : parts_of_file(options, parameter))
      if (!is_missing(part)) check_entry(*reader, family, part);
  const ValueSource from_file = parts_of([reader, options, &family](const Parameter& parameter,
                                                                    at::Tensor out) {
    for (const auto& part : family.weights(options, parameter)) {
      const at::Tensor to = part.view ? part.view(out) : out;
      at::Tensor(to).copy_(tensor_of(*reader, *entry_of(*reader, family, part)).view(to.sizes()));
    }
  });
  const ValueSource adaptations = heads ? heads : random_values(0);
  return [=, &family](const Parameter& parameter, at::Tensor out) {
    if (is_low_rank(parameter)) return adaptations(parameter, out);
    const bool fresh = is_missing(family.weights(options, parameter).front());
    (fresh ? heads : from_file)(parameter, out);
  };
}

ValueSource initial_values(const ModelOptions& options, const Stack& stack, std::uint64_t seed) {
  const ValueSource random = random_values(seed);
  return options.init.empty() ? random : read_weights(options.init, options, stack, random);
}

void write_weights(const fs::path& folder, const ModelOptions& options, const Stack& stack,
                   at::ScalarType type, const std::function<at::Tensor(const Parameter&)>& value,
                   const TokenNotes& tokens) {
  fs::create_directories(folder);
  const Family& family = family_of(options);
  std::vector<NamedTensor> tensors;
  at::Tensor whole;  // the parameter whose tensors are being written
  // An adapted matrix with its addition. Its factors come before it in the stack.
  const auto merged_value = [&](const Parameter& parameter) {
    const std::string_view name = parameter.name;
    const std::string product(name.substr(0, name.rfind('.')));
    const LowRank* low_rank = name.ends_with(".weight") ? stack.low_rank(product) : nullptr;
    if (!low_rank) return value(parameter);
    const at::Tensor a = value(*stack.find(low_rank_a(product))),
                     b = value(*stack.find(low_rank_b(product)));
    return merged(*low_rank, value(parameter), a, b);
  };
  for (const auto& parameter : stack.parameters()) {
    const auto parts = parts_of_file(options, parameter);
    for (std::size_t i = 0; i < parts.size(); ++i)
      tensors.push_back({parts[i].name, parts[i].shape, type,
                         [&whole, &merged_value, &parameter, part = parts[i], first = i == 0,
                          last = i + 1 == parts.size()] {
                           if (first) whole = merged_value(parameter);
                           const at::Tensor out =
                               part.view ? part.view(whole).reshape(part.shape) : whole;
                           if (last) whole.reset();
                           return out;
                         }});
  }
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  auto config = nlohmann::json::parse(family.write_config(options));
  if (!config.contains("model_type")) config["model_type"] = family.name;
  if (tokens.kind == Tokens::bytes) config[tokeniser_key] = "bytes";
  const auto note = [&](const char* key, const std::optional<std::int32_t>& token) {
    if (token) config[key] = *token;
  };
  note("pad_token_id", tokens.padding);
  note("bos_token_id", tokens.begin);
  note("eos_token_id", tokens.end);
  write_file(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace echelon
