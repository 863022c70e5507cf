// The ranks that sum the gradients of a parameter, by the dimensions that the parameter names
// (Parameter::summed_over). Along other dimensions, ranks have different parameters.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "echelon/comm/dimension.h"

namespace echelon {

class Communicator;

class SumRanks {
 public:
  SumRanks() = default;  // no ranks
  // The same ranks for every parameter.
  SumRanks(std::shared_ptr<Communicator> batch) : batch_(std::move(batch)) {}
  // `batch`: all ranks that have samples of a step. A set of dimensions with only one rank maps to
  // null.
  SumRanks(std::shared_ptr<Communicator> batch,
           std::map<Dimensions, std::shared_ptr<Communicator>> by_set)
      : batch_(std::move(batch)), by_set_(std::move(by_set)) {}

  const std::shared_ptr<Communicator>& batch() const { return batch_; }
  // Null: these gradients are not exchanged.
  const std::shared_ptr<Communicator>& of(Dimensions summed_over) const;
  // Whether every parameter is summed over all ranks of the batch.
  bool are_alike() const;
  // A common multiple of the numbers of ranks that parameters are summed over.
  int common_multiple() const;

 private:
  std::shared_ptr<Communicator> batch_;
  std::map<Dimensions, std::shared_ptr<Communicator>> by_set_;  // empty: batch_ for all
};

}  // namespace echelon
