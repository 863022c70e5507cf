// The rows of a table that tokens name: [samples, tokens] -> [samples, tokens, width]. A piece that
// layers are made of.
//
// Ranks can split the vocabulary: each looks up the tokens whose rows it has, the others give zero,
// and the sum over the ranks is the result, to the same bits.
#pragma once

#include <string>

#include "echelon/nn/layer.h"

namespace echelon {

class TokenTable {
 public:
  void declare(Declaration& declaration, const std::string& name, std::int64_t vocab,
               std::int64_t width, double stddev);

  at::Tensor forward(const at::Tensor& tokens) const;
  void backward(const at::Tensor& grad, const at::Tensor& tokens) const;

 private:
  Parameter* table_ = nullptr;
};

// Tokens as a rank that has a part of the vocabulary sees them.
struct OwnTokens {
  at::Tensor row;      // within the part; 0 for those of others
  at::Tensor foreign;  // whether they are another's
};
// Throws InvalidArgument for what is no token of the vocabulary; on a GPU, which would have to be
// waited for, such a token belongs to nobody.
OwnTokens own_tokens(const at::Tensor& tokens, const Split& vocabulary);

}  // namespace echelon
