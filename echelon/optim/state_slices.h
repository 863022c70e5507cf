// The list of optimiser state that a rank owns. An update lists its slices (Update::slices), and
// code that saves, restores or compares state reads the list. The list looks the same whether a
// rank owns whole parameters, slices of them, or slices that are kept on disk.
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
  std::int64_t begin, numel;  // flat elements, relative to this process's part of the parameter
  // Calls `use` with the elements as a flat tensor in the masters' type, fetching them if they are
  // offloaded. If `changes`, keeps what `use` writes; call Update::publish after changes.
  std::function<void(bool changes, const std::function<void(at::Tensor)>& use)> access;
};

// The slices of an update by kind and parameter.
class StateIndex {
 public:
  explicit StateIndex(const Update& update);

  // One kind of state for this process's part of a parameter. Collective over the update's owners:
  // every element comes from the rank that owns it.
  at::Tensor whole(const std::string& kind, const Parameter& parameter) const;
  // Stores this rank's slices of `values`, which has the shape that the parameter has here.
  void put(const std::string& kind, const Parameter& parameter, const at::Tensor& values) const;

 private:
  const std::vector<StateSlice>& slices(const std::string& kind, const Parameter& parameter) const;

  const Update& update_;
  std::map<std::pair<std::string, const Parameter*>, std::vector<StateSlice>> slices_;
};

}  // namespace echelon
