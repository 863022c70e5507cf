// What the certificate knows of each model family, written down once more from its description and
// not taken from models/: a tiny model whose sizes divide over a tensor group, and how large its
// parameters are. A row a family.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/models/options.h"

namespace echelon {

struct ModelForm {
  const char* family;
  int norm_vectors;     // parameters of a norm, each as wide as the model
  bool position_table;  // beside that of the tokens
  // Elements of each matrix and bias of a block that one of `tensor` ranks has.
  std::vector<std::uint64_t> (*products)(const ModelOptions& model, std::uint64_t tensor);
  // Sets the options that are the family's own, for as many heads as the model has.
  void (*shrink)(ModelOptions& model, std::int64_t tensor);
};

const std::vector<ModelForm>& model_forms();
const ModelForm& form_of(const ModelOptions& model);

}  // namespace echelon
