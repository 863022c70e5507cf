// What the certificate knows about each model family, derived from its description and independent
// of models/: a tiny model whose sizes divide by a tensor group, and the sizes of its parameters.
// One row per family.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/models/options.h"

namespace echelon {

struct ModelForm {
  const char* family;
  int norm_vectors;     // parameters of a norm, each as wide as the model
  bool position_table;  // besides the token table
  // Elements of each matrix and bias of a block that one of `tensor` ranks has.
  std::vector<std::uint64_t> (*products)(const ModelOptions& model, std::uint64_t tensor);
  // Sets the options of the family itself, for the model's number of heads.
  void (*shrink)(ModelOptions& model, std::int64_t tensor);
};

const std::vector<ModelForm>& model_forms();
const ModelForm& form_of(const ModelOptions& model);

}  // namespace echelon
