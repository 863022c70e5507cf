// A batch: named tensors whose first dimension is the samples.
//
//   Batch words{ids, labels};                                          // "input" and "target"
//   Batch pairs{ids, labels, {{"mask", mask}, {"token_types", types}}};
//
// `input` is what the first layer gets, unless Stack::reads names other tensors, and `target` is
// what the loss compares with. Every layer finds all tensors of its micro-batch in Pass::batch, on
// every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace echelon {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct Batch {
  at::Tensor input;
  at::Tensor target;  // undefined: the model's output is wanted, not its loss
  NamedTensors more = {};
  // [samples]: the number of targets of each sample (Dataset::targets); undefined: all alike.
  at::Tensor targets = {};

  std::int64_t samples() const;

  // "input", "target", "targets" or a name in `more`. find() returns nullptr if there is none, at()
  // throws InvalidArgument that lists the names of this batch.
  const at::Tensor* find(std::string_view name) const;
  const at::Tensor& at(std::string_view name) const;

  // Every tensor that is defined, with its name; fn(name, tensor).
  template <class Fn>
  void each(Fn fn) const {
    if (input.defined()) fn(std::string_view("input"), input);
    if (target.defined()) fn(std::string_view("target"), target);
    for (const auto& [name, tensor] : more)
      if (tensor.defined()) fn(std::string_view(name), tensor);
    if (targets.defined()) fn(std::string_view("targets"), targets);
  }
  // The batch of fn(tensor) for each of them.
  template <class Fn>
  Batch map(Fn fn) const {
    const auto one = [&](const at::Tensor& tensor) {
      return tensor.defined() ? fn(tensor) : at::Tensor();
    };
    Batch result{one(input), one(target), {}, one(targets)};
    for (const auto& [name, tensor] : more) result.more.emplace_back(name, one(tensor));
    return result;
  }

  Batch narrow(std::int64_t first, std::int64_t samples) const;
  // Floating-point tensors get this type; integers and `targets` keep theirs.
  Batch to(at::Device device, at::ScalarType type) const;
  // Names, types and sizes: "input Long [8, 128], target Long [8]".
  std::string description() const;
  // Throws InvalidArgument unless names differ and every tensor has the same number of samples.
  void check() const;
};

}  // namespace echelon
