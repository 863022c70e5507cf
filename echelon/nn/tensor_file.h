// Tensors in safetensors files: the bridge between the container (base/safetensors.h) and torch's
// types.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "echelon/base/safetensors.h"

namespace echelon {

// The tensor, read from the file. InvalidArgument for a type that torch has no counterpart of.
at::Tensor tensor_of(const safetensors::Reader& reader, const safetensors::Entry& entry);
// Its type alone, without reading it; likewise.
at::ScalarType type_of(const safetensors::Reader& reader, const safetensors::Entry& entry);

// As files call it: "F32"; "" for a type that they have no name for.
std::string name_of_type(at::ScalarType type);

// What a file will hold; `make` is called once, when its turn to be written comes.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType type;
  std::function<at::Tensor()> make;
};

// Whole or not at all, see write_file.
void write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                   const safetensors::Metadata& metadata);

}  // namespace echelon
