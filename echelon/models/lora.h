// LoRA for every family: which matrices the options adapt, and the adapter's folder as PEFT reads
// and writes it.
//
//   Stack stack(lora_plan(options));    // what a family's build does
//
// The names of model.lora.matrices are roles (query, key, value, output, gate, up, down), groups of
// roles (attention, mlp, all), or names of the weights file: "q_proj", "model.layers.3.*". In the
// file of a GPT-2, queries, keys and values are one matrix: they share one A, and where only some
// of them are adapted, the others' columns of B are zeros that are not stored here.
//
// The heads of a classification are trained whole, as PEFT's modules_to_save.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/models/family.h"
#include "echelon/nn/low_rank.h"

namespace echelon {

// Null without model.lora.rank. Throws InvalidArgument if a name of model.lora.matrices is none of
// the model's.
std::shared_ptr<const LowRankPlan> lora_plan(const ModelOptions& options);

// Throws InvalidArgument if the options of "model.lora" contradict each other.
void check_lora(const ModelOptions& options);

// Whether the parameter is in the adapter's file: the low-rank ones, and the head of a
// classification. Also where train.freeze keeps them from training.
bool is_in_adapter(const ModelOptions& options, const Parameter& parameter);

// The product that a low-rank parameter adapts: "transformer.h.0.attn.c_attn".
std::string adapted_product(const Parameter& low_rank);

// W plus the adaptation's addition, in fp64: all whole.
at::Tensor merged(const LowRank& low_rank, const at::Tensor& weight, const at::Tensor& a,
                  const at::Tensor& b);

// Whether the folder holds an adapter and no model.
bool is_adapter(const std::filesystem::path& folder);

// The options of the adapted model: those of the adapter's base with "model.lora", and the task.
ModelOptions read_adapter_options(const std::filesystem::path& folder);

// If the adapter is of a classification: the task, the number of labels if the base has none, and
// their names if the adapter has them.
void read_adapter_task(const std::filesystem::path& folder, ModelOptions& options);

// Takes rank, alpha and matrices from model.lora.init's adapter. Throws InvalidArgument if a key
// that the user has `given` contradicts them.
void resolve_lora(ModelOptions& options, const std::vector<std::string>& given);

// Whether the adapter in the folder has this tensor of the model's file, as it has those of a
// trained head: "classifier.weight".
bool adapter_has(const std::filesystem::path& folder, const std::string& tensor);

// The values of the parameters that the adapter in the folder has, and those of `others` for the
// rest. Checks names, shapes and types before any value is read.
ValueSource read_adapter(const std::filesystem::path& folder, const ModelOptions& options,
                         const Stack& stack, const ValueSource& others);

// A tensor of an adapter's file, and how it is made of a whole parameter.
struct AdapterPart {
  std::string name;
  std::vector<std::int64_t> shape;
  std::function<at::Tensor(const at::Tensor& whole)> of;
};
std::vector<AdapterPart> adapter_parts(const ModelOptions& options, const Parameter& parameter);

// Writes adapter_config.json and adapter_model.safetensors. `value` is called once for each
// parameter that is_in_adapter(), in the order of the stack.
void write_adapter(const std::filesystem::path& folder, const ModelOptions& options,
                   const Stack& stack, at::ScalarType type,
                   const std::function<at::Tensor(const Parameter&)>& value);

}  // namespace echelon
