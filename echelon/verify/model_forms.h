// What the certificate knows about each kind of model, derived from its description and independent
// of models/: a tiny model whose sizes divide by a tensor group, and the sizes of its parameters.
// One row per family and task.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/models/options.h"

namespace echelon {

struct ModelForm {
  using Sizes = std::vector<std::uint64_t>;

  const char* name;  // in the matrix and in the names of cells: "bert classify"
  const char* family;
  ModelTask task;
  // Elements of each parameter that one of `tensor` ranks has: of the embedding besides the token
  // table, of a block, and of the head besides a table.
  Sizes (*embedding)(const ModelOptions& model);
  Sizes (*block)(const ModelOptions& model, std::uint64_t tensor);
  Sizes (*head)(const ModelOptions& model, std::uint64_t tensor);
  bool loss_over_vocabulary;  // the head multiplies by the token table, or by a table of its own
  // Ranks that split rows each work on some: the elements of a block and of the head whose
  // gradients they sum. Of the embedding it is all but the token table.
  std::uint64_t (*rows_of_block)(const ModelOptions& model);
  std::uint64_t (*rows_of_head)(const ModelOptions& model);
  // Elements of A and B of queries, values and down in a block, by the rank of an adaptation
  // (LoRA), and how many of them every tensor rank has whole and sums the gradients of. A head over
  // labels trains beside them.
  struct Adapted {
    Sizes parameters;
    std::uint64_t summed;
  };
  Adapted (*adapted)(const ModelOptions& model, std::uint64_t tensor);
  // A block ends with a norm, so recomputing it runs its last product too.
  bool ends_with_norm;
  // Sets the task and the options of the family itself, for the model's number of heads.
  void (*shrink)(ModelOptions& model, std::int64_t tensor);
};

const std::vector<ModelForm>& model_forms();
const ModelForm& form_of(const ModelOptions& model);
const ModelForm& form_named(const std::string& name);

}  // namespace echelon
