// Who sums the gradients of a parameter: ranks by the dimensions that it names
// (Parameter::summed_over). Along dimensions that it does not name, ranks have other parameters.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "echelon/comm/dimension.h"

namespace echelon {

class Communicator;

class SumRanks {
 public:
  SumRanks() = default;  // nobody
  // The same for every parameter.
  SumRanks(std::shared_ptr<Communicator> batch) : batch_(std::move(batch)) {}
  // `batch`: all ranks that have samples of a step. A set of dimensions with one rank has null.
  SumRanks(std::shared_ptr<Communicator> batch,
           std::map<Dimensions, std::shared_ptr<Communicator>> by_set)
      : batch_(std::move(batch)), by_set_(std::move(by_set)) {}

  const std::shared_ptr<Communicator>& batch() const { return batch_; }
  // Null: such gradients are not exchanged.
  const std::shared_ptr<Communicator>& of(Dimensions summed_over) const;
  // Whether every parameter is summed over all of the batch's ranks.
  bool are_alike() const;
  // A number that divides by how many ranks any parameter is summed over.
  int common_multiple() const;

 private:
  std::shared_ptr<Communicator> batch_;
  std::map<Dimensions, std::shared_ptr<Communicator>> by_set_;  // empty: batch_ for all
};

}  // namespace echelon
