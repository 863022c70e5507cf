#include "echelon/nn/tensor_file.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>

#include "echelon/base/error.h"

namespace echelon {
namespace {

struct TypeName {
  const char* name;
  at::ScalarType type;
};
constexpr std::array<TypeName, 9> type_names = {{{"F32", at::kFloat},
                                                 {"F64", at::kDouble},
                                                 {"F16", at::kHalf},
                                                 {"BF16", at::kBFloat16},
                                                 {"I64", at::kLong},
                                                 {"I32", at::kInt},
                                                 {"I8", at::kChar},
                                                 {"U8", at::kByte},
                                                 {"BOOL", at::kBool}}};

}  // namespace

at::ScalarType type_of(const safetensors::Reader& reader, const safetensors::Entry& entry) {
  for (const auto& [name, type] : type_names)
    if (entry.dtype == name) return type;
  throw InvalidArgument(fmt::format("{} in {} has type {}, which Echelon does not use", entry.name,
                                    reader.path().string(), entry.dtype));
}

at::Tensor tensor_of(const safetensors::Reader& reader, const safetensors::Entry& entry) {
  at::Tensor tensor = at::empty(entry.shape, type_of(reader, entry));
  reader.read(entry, std::span(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()));
  return tensor;
}

std::string name_of_type(at::ScalarType type) {
  for (const auto& one : type_names)
    if (one.type == type) return one.name;
  return "";
}

void write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                   const safetensors::Metadata& metadata) {
  std::vector<safetensors::Entry> entries;
  for (const auto& tensor : tensors) {
    safetensors::Entry& entry = entries.emplace_back();
    entry.name = tensor.name;
    entry.shape = tensor.shape;
    entry.dtype = name_of_type(tensor.type);
  }
  at::Tensor current;  // keeps the bytes alive until the next tensor is asked for
  safetensors::write(path, std::move(entries), metadata, [&](std::size_t i) {
    current = tensors[i].make().detach().to(at::kCPU, tensors[i].type).contiguous();
    return std::span(static_cast<const std::byte*>(current.const_data_ptr()), current.nbytes());
  });
}

}  // namespace echelon
