// An adapter as PEFT saves it: adapter_config.json, and adapter_model.safetensors with
//
//   base_model.model.MODULE.lora_A.weight [rank, in]
//   base_model.model.MODULE.lora_B.weight [out, rank]
//
// and the head of a classification, as "base_model.model.NAME". PEFT has no place for the names of
// labels: they are in the metadata of the safetensors file, which it ignores, as a JSON list under
// "echelon_label_names".
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"
#include "echelon/models/adapted_matrices.h"
#include "echelon/models/lora.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/tensor_file.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view outer = "base_model.model.";
constexpr std::string_view a_end = ".lora_A.weight", b_end = ".lora_B.weight";
constexpr const char* label_names_key = "echelon_label_names";

std::string in_file(std::string_view name, std::string_view end = "") {
  return fmt::format("{}{}{}", outer, name, end);
}

fs::path config_path(const fs::path& folder) { return folder / "adapter_config.json"; }
fs::path weights_path(const fs::path& folder) { return folder / "adapter_model.safetensors"; }

json read_config(const fs::path& folder) {
  const fs::path path = config_path(folder);
  if (!fs::exists(path))
    throw InvalidArgument(
        fmt::format("{} has no adapter_config.json: an adapter in PEFT's format "
                    "has one",
                    folder.string()));
  const std::string text = read_file(path);
  JsonReader::parse(text, path.string());  // its error says where the text is not JSON
  json config = json::parse(text);
  if (!config.is_object()) throw Corrupt(fmt::format("{} is not a JSON object", path.string()));
  return config;
}

std::shared_ptr<const safetensors::Reader> open_adapter(const fs::path& folder) {
  const fs::path path = weights_path(folder);
  if (!fs::exists(path))
    throw InvalidArgument(fmt::format("{} has no adapter_model.safetensors", folder.string()));
  return std::make_shared<const safetensors::Reader>(path);
}

// Keys of adapter_config.json that do not change what the adapter computes: what it is called and
// where it comes from, which modules it has (its tensors say that), and what only training does.
constexpr std::array<std::string_view, 18> harmless_keys = {"auto_mapping",
                                                            "base_model_name_or_path",
                                                            "exclude_modules",
                                                            "fan_in_fan_out",
                                                            "inference_mode",
                                                            "layers_pattern",
                                                            "layers_to_transform",
                                                            "lora_alpha",
                                                            "lora_dropout",
                                                            "megatron_core",
                                                            "modules_to_save",
                                                            "peft_version",
                                                            "qalora_group_size",
                                                            "r",
                                                            "revision",
                                                            "runtime_config",
                                                            "target_modules",
                                                            "task_type"};

// Any other key may change the formula or the base's weights, and newer versions of PEFT have more
// of them: it must have the value that means "without".
void require_plain(const fs::path& folder, const json& config) {
  const auto is_plain = [](const std::string& key, const json& value) {
    if (key == "peft_type") return value == "LORA";
    if (key == "bias") return value == "none";
    // Other ways to begin subtract their product from the base's weights (PiSSA, OLoRA, CorDA, …).
    if (key == "init_lora_weights")
      return value.is_boolean() || value.is_null() || value == "gaussian";
    return value.is_null() || value == false || value == "" ||
           ((value.is_object() || value.is_array()) && value.empty());
  };
  for (const auto& [key, value] : config.items()) {
    if (std::find(harmless_keys.begin(), harmless_keys.end(), key) != harmless_keys.end() ||
        is_plain(key, value))
      continue;
    throw InvalidArgument(fmt::format("{} has {} = {}, which Echelon's LoRA does not have",
                                      config_path(folder).string(), key, value.dump()));
  }
}

double number_of(const fs::path& folder, const json& config, const char* key, double least) {
  const auto it = config.find(key);
  if (it == config.end() || !it->is_number() || it->get<double>() < least ||
      it->get<double>() > 1e6)
    throw Corrupt(fmt::format("{}: {} is {}, not a number of reasonable size",
                              config_path(folder).string(), key,
                              it == config.end() ? "missing" : it->dump()));
  return it->get<double>();
}

std::vector<std::string> modules_in(const safetensors::Reader& reader) {
  std::vector<std::string> modules;
  for (const auto& entry : reader.header().entries) {
    const std::string_view name = entry.name;
    if (name.starts_with(outer) && name.ends_with(a_end) &&
        name.size() > outer.size() + a_end.size())
      modules.emplace_back(name.substr(outer.size(), name.size() - outer.size() - a_end.size()));
  }
  std::sort(modules.begin(), modules.end());
  if (modules.empty())
    throw InvalidArgument(fmt::format("{} has no tensor named {}…{}: it is no LoRA adapter",
                                      reader.path().string(), outer, a_end));
  return modules;
}

// "self_attn.q_proj" of "model.layers.3.self_attn.q_proj": what follows the block's number.
std::string within_block(const std::string& module) {
  for (std::size_t dot = module.find('.'); dot != std::string::npos;) {
    const auto next = module.find('.', dot + 1);
    if (next == std::string::npos) break;
    if (std::all_of(module.begin() + std::ptrdiff_t(dot) + 1, module.begin() + std::ptrdiff_t(next),
                    [](unsigned char c) { return std::isdigit(c) != 0; }))
      return module.substr(next + 1);
    dot = next;
  }
  return module;
}

// Names that select exactly these modules: one for all blocks where it serves.
std::vector<std::string> short_names(const ModelOptions& options,
                                     const std::set<std::string>& modules) {
  std::vector<std::string> names;
  std::set<std::string> tried;
  for (const std::string& module : modules) {
    const std::string name = within_block(module);
    bool serves = true;
    for (const auto& product : family_of(options).products(options))
      for (const auto& matrix : product.matrices)
        serves = serves && (!names_module(name, matrix.module) || modules.contains(matrix.module));
    if (!serves)
      names.push_back(module);
    else if (tried.insert(name).second)
      names.push_back(name);
  }
  return names;
}

// What PEFT calls the head's modules: attributes of the model's class.
std::string module_to_save(std::string name) {
  name.resize(name.rfind('.'));  // without "weight"
  if (name.ends_with(".dense")) name.resize(name.rfind('.'));
  return name.substr(name.rfind('.') + 1);
}

const char* peft_task(const ModelOptions& options) {
  switch (task_of(options)) {
    case ModelTask::causal:
      return "CAUSAL_LM";
    case ModelTask::classify:
      return "SEQ_CLS";
    case ModelTask::automatic:
    case ModelTask::mlm:
      break;
  }
  return nullptr;  // PEFT has no name for it
}

std::string config_of(const ModelOptions& options, const Stack& stack) {
  const Family& family = family_of(options);
  std::set<std::string> modules, saved;
  bool in_by_out = false;  // how the file stores matrices
  for (const auto& product : adapted_products(options)) {
    for (const auto& matrix : product.matrices) modules.insert(matrix.module);
    in_by_out = !family.weights(options, *stack.find(product.name + ".weight")).front().view;
  }
  for (const auto& parameter : stack.parameters())
    if (is_in_adapter(options, parameter) && !is_low_rank(parameter))
      for (const auto& part : family.weights(options, parameter))
        saved.insert(module_to_save(part.name));
  const char* task = peft_task(options);
  return json{
      {"peft_type", "LORA"},
      {"task_type", task ? json(task) : json()},
      {"base_model_name_or_path",
       options.init.empty() ? json() : json(fs::absolute(options.init).string())},
      {"r", options.lora.rank},
      {"lora_alpha", options.lora.alpha},
      {"lora_dropout", 0.0},
      {"target_modules", short_names(options, modules)},
      {"modules_to_save", saved.empty() ? json() : json(saved)},
      {"fan_in_fan_out", in_by_out},
      {"bias", "none"},
      {"inference_mode", true},
  }
      .dump(2);
}

const AdaptedProduct& product_of(const std::vector<AdaptedProduct>& products,
                                 const Parameter& parameter) {
  return *std::find_if(products.begin(), products.end(), [&](const AdaptedProduct& one) {
    return one.name == adapted_product(parameter);
  });
}

// B of one matrix as the file has it, [out, rank]: zeros where its columns are not adapted.
at::Tensor whole_b(const AdaptedMatrix& matrix, const at::Tensor& b) {
  const at::Tensor whole = at::zeros({matrix.out, b.size(0)}, b.options());
  for (const auto& columns : matrix.columns)
    whole.narrow(0, columns.in_matrix, columns.size)
        .copy_(b.narrow(1, columns.in_b, columns.size).t());
  return whole;
}

const safetensors::Entry& entry_of(const safetensors::Reader& reader, const std::string& name,
                                   const std::vector<std::int64_t>& shape) {
  const auto* entry = reader.find(name);
  if (entry == nullptr)
    throw InvalidArgument(fmt::format("{} has no tensor {}", reader.path().string(), name));
  if (entry->shape != shape)
    throw InvalidArgument(fmt::format("{} in {} has shape [{}]; the model needs [{}]", name,
                                      reader.path().string(), fmt::join(entry->shape, ", "),
                                      fmt::join(shape, ", ")));
  if (!at::isFloatingType(type_of(reader, *entry)))
    throw InvalidArgument(fmt::format("{} in {} has type {}, not a floating-point one", name,
                                      reader.path().string(), entry->dtype));
  return *entry;
}

const safetensors::Entry& entry_of(const safetensors::Reader& reader, const AdaptedMatrix& matrix,
                                   const Parameter& parameter, std::int64_t rank) {
  const bool in = parameter.splits == Splits::low_rank_in;
  return entry_of(
      reader, in_file(matrix.module, in ? a_end : b_end),
      in ? std::vector{rank, parameter.whole_shape().front()} : std::vector{matrix.out, rank});
}

void read_b(const safetensors::Reader& reader, const safetensors::Entry& entry,
            const AdaptedMatrix& matrix, const at::Tensor& out) {
  at::Tensor whole = tensor_of(reader, entry).clone();
  for (const auto& columns : matrix.columns) {
    const at::Tensor from = whole.narrow(0, columns.in_matrix, columns.size);
    at::Tensor(out.narrow(1, columns.in_b, columns.size)).copy_(from.t());
    from.zero_();
  }
  if (whole.any().item<bool>())
    throw InvalidArgument(fmt::format(
        "{} in {} also adapts columns that model.lora.matrices leaves out: leave that option out",
        entry.name, reader.path().string()));
}

}  // namespace

bool is_adapter(const fs::path& folder) {
  return fs::exists(config_path(folder)) && !fs::exists(folder / "config.json");
}

bool adapter_has(const fs::path& folder, const std::string& tensor) {
  return open_adapter(folder)->find(in_file(tensor)) != nullptr;
}

void read_adapter_task(const fs::path& folder, ModelOptions& options) {
  if (read_config(folder).value("task_type", json()) != "SEQ_CLS") return;
  const auto reader = open_adapter(folder);
  if (task_of(options) != ModelTask::classify) {
    const auto* head = reader->find(in_file("classifier.weight"));
    if (!head || head->shape.size() != 2)
      throw InvalidArgument(fmt::format("{} is of a classification and has no tensor {}",
                                        reader->path().string(), in_file("classifier.weight")));
    options.task = {.name = ModelTask::classify, .labels = head->shape.front()};
  }
  const auto& metadata = reader->header().metadata;
  const auto it = metadata.find(label_names_key);
  if (it == metadata.end()) return;
  const json names = json::parse(it->second, nullptr, /*allow_exceptions=*/false);
  const bool right =
      names.is_array() && std::ssize(names) == options.task.labels &&
      std::all_of(names.begin(), names.end(), [](const json& name) { return name.is_string(); });
  if (!right)
    throw Corrupt(fmt::format("{}: {} is {}, not the names of {} labels", reader->path().string(),
                              label_names_key, it->second, options.task.labels));
  options.task.label_names = names.get<std::vector<std::string>>();
}

ModelOptions read_adapter_options(const fs::path& folder) {
  const json config = read_config(folder);
  const auto base = config.find("base_model_name_or_path");
  fs::path path = base != config.end() && base->is_string() ? base->get<std::string>() : "";
  if (!path.empty() && !fs::is_directory(path) && fs::is_directory(folder / path))
    path = folder / path;
  if (path.empty() || !fs::is_directory(path))
    throw InvalidArgument(fmt::format(
        "{} is an adapter of {}, which is no folder here: give the model's folder as model.init "
        "and this one as model.lora.init",
        folder.string(), base == config.end() ? "an unknown model" : base->dump()));
  ModelOptions options = read_model_options(path);
  options.lora.init = folder.string();
  read_adapter_task(folder, options);
  resolve_lora(options, {});
  return options;
}

void resolve_lora(ModelOptions& options, const std::vector<std::string>& given) {
  LoraOptions& lora = options.lora;
  if (lora.init.empty()) return;
  const fs::path folder = lora.init;
  const json config = read_config(folder);
  require_plain(folder, config);
  const auto was_given = [&](const char* key) {
    return std::find(given.begin(), given.end(), key) != given.end();
  };
  const auto take = [&](const char* key, auto& ours, auto theirs) {
    if (was_given(key) && ours != theirs)
      throw InvalidArgument(fmt::format("{} = {}, but the adapter in {} has {}: leave it out", key,
                                        ours, lora.init, theirs));
    ours = theirs;
  };
  take("model.lora.rank", lora.rank, std::int64_t(number_of(folder, config, "r", 1)));
  take("model.lora.alpha", lora.alpha, number_of(folder, config, "lora_alpha", 0));
  if (was_given("model.lora.matrices")) return;
  const auto modules = modules_in(*open_adapter(folder));
  lora.matrices = short_names(options, {modules.begin(), modules.end()});
}

ValueSource read_adapter(const fs::path& folder, const ModelOptions& options, const Stack& stack,
                         const ValueSource& others) {
  const auto reader = open_adapter(folder);
  const auto products = adapted_products(options);
  const auto rank = options.lora.rank;
  const Family& family = family_of(options);
  const auto has = [reader](const WeightPart& part) { return reader->find(in_file(part.name)); };
  std::set<std::string> used;
  for (const auto& parameter : stack.parameters()) {
    if (is_low_rank(parameter))
      for (const auto& matrix : product_of(products, parameter).matrices)
        used.insert(entry_of(*reader, matrix, parameter, rank).name);
    else if (is_in_adapter(options, parameter))
      for (const auto& part : family.weights(options, parameter))
        if (has(part)) used.insert(entry_of(*reader, in_file(part.name), part.shape).name);
  }
  for (const auto& entry : reader->header().entries)
    if (!used.contains(entry.name))
      throw InvalidArgument(
          fmt::format("{} has {}, which is none of the adapted model's: model.lora.matrices must "
                      "name all that the adapter adapts",
                      reader->path().string(), entry.name));
  const ValueSource from_file = parts_of([=, &family](const Parameter& parameter, at::Tensor out) {
    if (!is_low_rank(parameter)) {
      for (const auto& part : family.weights(options, parameter)) {
        const at::Tensor to = part.view ? part.view(out) : out;
        at::Tensor(to).copy_(tensor_of(*reader, *has(part)).view(to.sizes()));
      }
      return;
    }
    for (const auto& matrix : product_of(products, parameter).matrices) {
      const auto& entry = entry_of(*reader, matrix, parameter, rank);
      if (parameter.splits == Splits::low_rank_out)
        read_b(*reader, entry, matrix, out);
      else
        at::Tensor(out.narrow(1, matrix.factor * rank, rank)).copy_(tensor_of(*reader, entry).t());
    }
  });
  return [=, &family](const Parameter& parameter, at::Tensor out) {
    const bool here = is_low_rank(parameter) || (is_in_adapter(options, parameter) &&
                                                 has(family.weights(options, parameter).front()));
    (here ? from_file : others)(parameter, out);
  };
}

std::vector<AdapterPart> adapter_parts(const ModelOptions& options, const Parameter& parameter) {
  std::vector<AdapterPart> parts;
  if (!is_low_rank(parameter)) {
    for (const auto& part : family_of(options).weights(options, parameter))
      parts.push_back({in_file(part.name), part.shape, [part](const at::Tensor& whole) {
                         return part.view ? part.view(whole).reshape(part.shape) : whole;
                       }});
    return parts;
  }
  const auto rank = options.lora.rank;
  const auto products = adapted_products(options);
  for (const auto& matrix : product_of(products, parameter).matrices) {
    if (parameter.splits == Splits::low_rank_in)
      parts.push_back({in_file(matrix.module, a_end),
                       {rank, parameter.whole_shape().front()},
                       [factor = matrix.factor, rank](const at::Tensor& whole) {
                         return whole.narrow(1, factor * rank, rank).t();
                       }});
    else
      parts.push_back({in_file(matrix.module, b_end),
                       {matrix.out, rank},
                       [matrix](const at::Tensor& whole) { return whole_b(matrix, whole); }});
  }
  return parts;
}

void write_adapter(const fs::path& folder, const ModelOptions& options, const Stack& stack,
                   at::ScalarType type, const std::function<at::Tensor(const Parameter&)>& value) {
  fs::create_directories(folder);
  std::vector<NamedTensor> tensors;
  at::Tensor whole;  // the parameter whose tensors are being written
  for (const auto& parameter : stack.parameters()) {
    if (!is_in_adapter(options, parameter)) continue;
    bool first = true;
    for (const AdapterPart& part : adapter_parts(options, parameter))
      tensors.push_back(
          {part.name, part.shape, type,
           [&whole, &value, &parameter, of = part.of, first = std::exchange(first, false)] {
             if (first) whole = value(parameter);
             return of(whole).contiguous();
           }});
  }
  safetensors::Metadata metadata = {{"format", "pt"}};
  if (const auto& names = options.task.label_names; !names.empty())
    metadata[label_names_key] = json(names).dump();
  write_tensors(weights_path(folder), tensors, metadata);
  write_file(config_path(folder), config_of(options, stack) + "\n");
}

}  // namespace echelon
