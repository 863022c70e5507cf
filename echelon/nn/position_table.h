// Learned positions: row i of a table is added to token i of every sample, or to the tokens whose
// position the batch's "positions" say is i (documents that are packed into one row). A building
// block of layers. If ranks split rows, each rank adds the positions of its own rows, and the
// table's gradient is summed over the ranks.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class PositionTable {
 public:
  void declare(Declaration& declaration, const std::string& name, std::int64_t context,
               std::int64_t width, double stddev);

  void add_to(at::Tensor x, const Pass& pass) const;
  void backward(const at::Tensor& grad, const Pass& pass) const;

 private:
  Parameter* table_ = nullptr;
};

}  // namespace echelon
