// The model families. A family is a folder here and one row of the registry (registry.cpp): a
// Family that defines how its models are built, split, forecast, read and written. Code that
// trains, plans or verifies a model asks for its family and knows no family by name:
//
//   const Family& family = family_of(options);
//   Stack stack = family.build(options);
//   apply(family.split(options), stack, mesh.tensor);
//
// docs/models.md explains how to add one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "echelon/models/activations.h"
#include "echelon/models/options.h"
#include "echelon/nn/split_plan.h"
#include "echelon/nn/stack.h"

namespace echelon {

class FolderConfig;

// A tensor of a weights file, and where its elements are in a parameter: a parameter can hold
// several (queries, keys and values), and in another order of dimensions.
//
// A head is what a task adds to the body of a model. A folder that has none of a head's tensors,
// because it was trained for another task, gets a new one.
struct WeightPart {
  std::string name;                 // in the file
  std::vector<std::int64_t> shape;  // in the file
  // A view of the whole parameter with the tensor's elements in their order; empty: the parameter
  // itself.
  std::function<at::Tensor(const at::Tensor& whole)> view = {};
  std::vector<std::string> other_names = {};  // under which files have it too
  const char* head = nullptr;  // the name of the head that it belongs to; null: the body
};

// A product of a block as its low-rank adaptation sees it: the matrices of a weights file that make
// up its columns, side by side. Each matrix gets factors of its own. LoRA calls the columns of a
// matrix by their roles: "query", "key", "value", "output" of attention; "gate", "up", "down" of
// the rest.
struct ProductMatrices {
  std::string name;  // of the building block: "model.layers.3.self_attn.qkv_proj"
  struct Columns {
    const char* role;
    std::int64_t size;
  };
  struct Matrix {
    std::string module;  // in the file: "model.layers.3.self_attn.q_proj"
    std::vector<Columns> columns;
  };
  std::vector<Matrix> matrices;
};

struct Family {
  const char* name;   // model.family, and "model_type" in a folder's config.json
  const char* title;  // for people: "GPT of 979k parameters"
  // What its models can be trained to do; the first without another choice.
  std::span<const ModelTask> tasks;

  // Throws InvalidArgument if the sizes do not fit together, or an option belongs to another
  // family. The bounds of single options have been checked before.
  void (*check)(const ModelOptions& options);
  // The model, described and not allocated. Checks the options first.
  Stack (*build)(const ModelOptions& options);
  // How a tensor group splits its matrices.
  SplitPlan (*split)(const ModelOptions& options);
  // The products of its blocks, which LoRA can adapt (lora.h).
  std::vector<ProductMatrices> (*products)(const ModelOptions& options);
  // By layer of the stack.
  std::vector<LayerActivations> (*activations)(const ModelOptions& options,
                                               const ActivationShape& shape);
  // "3 layers, width 160, 5 heads, context 64"
  std::string (*describe)(const ModelOptions& options);

  // Hugging Face folders (weights_folder.h). The options that a config.json describes; throws
  // InvalidArgument if the family cannot build that model.
  ModelOptions (*read_config)(const FolderConfig& config);
  // The fields of config.json, as a JSON object; "model_type" is added if it is not there.
  std::string (*write_config)(const ModelOptions& options);
  // The tensors of the file that make up a parameter, in the parameter's order.
  std::vector<WeightPart> (*weights)(const ModelOptions& options, const Parameter& parameter);
  // The prefix of all tensor names except the output layer's; a bare model has no prefix.
  const char* prefix;
  // Another "model_type" that it reads; null: none.
  const char* also_reads = nullptr;

  // Whether no parameter depends on model.context, so that it may differ from that of the weights.
  bool any_context = false;

  // Options of the section "model" that no other family has; null: none.
  void (*fields)(ModelOptions& options, Fields& fields) = nullptr;
};

// In the order of the registry.
std::span<const Family* const> families();

// By model.family; throws InvalidArgument for an unknown one.
const Family& family_of(const ModelOptions& options);
// By name; null if unknown.
const Family* find_family(std::string_view name);

// Throws InvalidArgument if the options do not describe a model, or belong to another family or
// task.
void check(const ModelOptions& options);

// What the model is trained to do: task.name, or the family's first task if that is auto.
ModelTask task_of(const ModelOptions& options);

}  // namespace echelon
