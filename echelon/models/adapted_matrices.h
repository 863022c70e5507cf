// What model.lora.matrices selects, for the model (lora.cpp) and for the adapter's folder
// (lora_folder.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/models/options.h"
#include "echelon/nn/low_rank.h"

namespace echelon {

// A matrix of the weights file that is adapted, in whole or in part.
struct AdaptedMatrix {
  struct Columns {
    std::int64_t in_matrix, in_b, size;  // where they begin in the matrix, and in B
  };
  std::string module;  // "model.layers.3.self_attn.q_proj"
  int factor = 0;
  std::int64_t out = 0;  // all its columns
  std::vector<Columns> columns = {};
};

struct AdaptedProduct {
  std::string name;
  LowRank low_rank = {};
  std::vector<AdaptedMatrix> matrices = {};
};

// Throws InvalidArgument if a name of model.lora.matrices selects nothing.
std::vector<AdaptedProduct> adapted_products(const ModelOptions& options);

// Whether the pattern matches the module's name or its end: "q_proj", "layers.3.*".
bool names_module(const std::string& pattern, const std::string& module);

}  // namespace echelon
