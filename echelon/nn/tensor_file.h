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

// Reads the tensor from the file. Throws InvalidArgument for a type that Echelon does not use.
at::Tensor tensor_of(const safetensors::Reader& reader, const safetensors::Entry& entry);
// Only the type, without reading the tensor. Throws the same.
at::ScalarType type_of(const safetensors::Reader& reader, const safetensors::Entry& entry);

// The type's name in files: "F32". Empty if files have no name for it.
std::string name_of_type(at::ScalarType type);

// A tensor to write. `make` is called once, when it is this tensor's turn.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType type;
  std::function<at::Tensor()> make;
};

// Atomic: writes the whole file or nothing, see write_file.
void write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                   const safetensors::Metadata& metadata);

}  // namespace echelon
