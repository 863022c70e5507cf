// What a rank owns of a model's state, as a list. An update names its slices (Update::slices), and
// whoever saves, restores or compares state reads the list: it is the same whether a rank owns all
// of every parameter, a slice of it, or a slice that is kept on disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "echelon/nn/parameter.h"

namespace echelon {

class Update;

struct StateSlice {
  std::string kind;  // "master", or a state of the optimiser: "exp_avg"
  const Parameter* parameter;
  std::int64_t begin, numel;  // elements of what this process has of the parameter, flat
  // Calls `use` with the elements as a flat tensor in the masters' type. They may come from where
  // they are offloaded to; `changes`: what `use` writes is kept. Update::publish follows changes.
  std::function<void(bool changes, const std::function<void(at::Tensor)>& use)> access;
};

// The slices of an update by kind and parameter.
class StateIndex {
 public:
  explicit StateIndex(const Update& update);

  // One kind of state of what this process has of a parameter: collective over the update's owners.
  // Every element comes from the rank that owns it.
  at::Tensor whole(const std::string& kind, const Parameter& parameter) const;
  // Keeps this rank's slices of `values`, which has the parameter's shape here.
  void put(const std::string& kind, const Parameter& parameter, const at::Tensor& values) const;

 private:
  const std::vector<StateSlice>& slices(const std::string& kind, const Parameter& parameter) const;

  const Update& update_;
  std::map<std::pair<std::string, const Parameter*>, std::vector<StateSlice>> slices_;
};

}  // namespace echelon
