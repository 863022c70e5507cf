// The model families. A family is a folder here and one row of the registry (registry.cpp): a
// Family that says how its models are built, split, forecast, read and written. Whoever trains,
// plans or verifies a model asks for its family and knows none by name:
//
//   const Family& family = family_of(options);
//   Stack stack = family.build(options);
//   apply(family.split(options), stack, mesh.tensor);
//
// docs/models.md says how to add one.
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
struct WeightPart {
  std::string name;                 // in the file
  std::vector<std::int64_t> shape;  // in the file
  // A view of the whole parameter with the tensor's elements in their order; empty: the parameter
  // itself.
  std::function<at::Tensor(const at::Tensor& whole)> view = {};
};

struct Family {
  const char* name;   // model.family, and "model_type" in a folder's config.json
  const char* title;  // for people: "GPT of 979k parameters"

  // Throws InvalidArgument where the sizes do not fit together, or an option is another family's.
  // What an option may be by itself has been checked.
  void (*check)(const ModelOptions& options);
  // The model, described and not allocated. Checks the options first.
  Stack (*build)(const ModelOptions& options);
  // How a tensor group splits its matrices.
  SplitPlan (*split)(const ModelOptions& options);
  // By layer of the stack.
  std::vector<LayerActivations> (*activations)(const ModelOptions& options,
                                               const ActivationShape& shape);
  // "3 layers, width 160, 5 heads, context 64"
  std::string (*describe)(const ModelOptions& options);

  // The folders of Hugging Face (weights_folder.h). The options that a config.json stands for:
  // InvalidArgument where it describes what the family does not build.
  ModelOptions (*read_config)(const FolderConfig& config);
  // The fields of config.json, as a JSON object; "model_type" is added.
  std::string (*write_config)(const ModelOptions& options);
  // The tensors of the file that make up a parameter, in the parameter's order.
  std::vector<WeightPart> (*weights)(const ModelOptions& options, const Parameter& parameter);
  // What the names of all tensors but the output layer's begin with; the bare model's leave it out.
  const char* prefix;

  // Whether no parameter depends on model.context: it can then be another than the weights' own.
  bool any_context = false;

  // Options of the section "model" that no other family has; null: none.
  void (*fields)(ModelOptions& options, Fields& fields) = nullptr;
};

// In the order of the registry.
std::span<const Family* const> families();

// By model.family; InvalidArgument for one that is not there.
const Family& family_of(const ModelOptions& options);
// By name; null: there is none.
const Family* find_family(std::string_view name);

// Throws InvalidArgument where the options are no model, or have some that are another family's.
void check(const ModelOptions& options);

}  // namespace echelon
