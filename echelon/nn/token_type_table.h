// BERT's token types (segments): a row of a small table is added to each token, chosen by the
// batch's "token_types", or row 0 if the batch has none. A building block of layers. If ranks split
// rows, each rank adds to its own rows, and the table's gradient is summed over the ranks.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class TokenTypeTable {
 public:
  void declare(Declaration& declaration, const std::string& name, std::int64_t types,
               std::int64_t width, double stddev);

  void add_to(at::Tensor x, const Pass& pass) const;
  void backward(const at::Tensor& grad, const Pass& pass) const;

 private:
  at::Tensor types_of(const at::Tensor& rows, const Pass& pass) const;

  Parameter* table_ = nullptr;
};

}  // namespace echelon
