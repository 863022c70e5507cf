#include "echelon/data/batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "echelon/base/error.h"

namespace echelon {

std::int64_t Batch::samples() const {
  std::int64_t samples = 0;
  each([&](std::string_view, const at::Tensor& tensor) {
    if (samples == 0 && tensor.dim() > 0) samples = tensor.size(0);
  });
  return samples;
}

const at::Tensor* Batch::find(std::string_view name) const {
  const at::Tensor* found = nullptr;
  each([&](std::string_view one, const at::Tensor& tensor) {
    if (one == name) found = &tensor;
  });
  return found;
}

const at::Tensor& Batch::at(std::string_view name) const {
  if (const auto* found = find(name)) return *found;
  std::vector<std::string> names;
  each([&](std::string_view one, const at::Tensor&) { names.emplace_back(one); });
  throw InvalidArgument(
      fmt::format("the batch has no tensor named '{}': the dataset gives {}", name,
                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

Batch Batch::narrow(std::int64_t first, std::int64_t samples) const {
  return map([&](const at::Tensor& tensor) { return tensor.narrow(0, first, samples); });
}

Batch Batch::to(at::Device device, at::ScalarType type) const {
  Batch there = map([&](const at::Tensor& tensor) {
    return tensor.to(device, tensor.is_floating_point() ? type : tensor.scalar_type());
  });
  if (targets.defined()) there.targets = targets.to(device);
  return there;
}

std::string Batch::description() const {
  std::string text;
  each([&](std::string_view name, const at::Tensor& tensor) {
    text += fmt::format("{}{} {} [{}]", text.empty() ? "" : ", ", name,
                        c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  });
  return text;
}

void Batch::check() const {
  const auto samples = this->samples();
  std::vector<std::string_view> names;
  each([&](std::string_view name, const at::Tensor& tensor) {
    if (std::find(names.begin(), names.end(), name) != names.end())
      throw InvalidArgument(fmt::format("the batch has two tensors named '{}'", name));
    names.push_back(name);
    if (tensor.dim() == 0 || tensor.size(0) != samples)
      throw InvalidArgument(fmt::format(
          "the batch's '{}' is [{}], and its '{}' has {} samples: the first dimension must be the "
          "samples in both",
          name, fmt::join(tensor.sizes(), ", "), names.front(), samples));
  });
}

}  // namespace echelon
