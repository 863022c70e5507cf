// Looks up tokens in an embedding table: [samples, tokens] -> [samples, tokens, width]. A building
// block of layers.
//
// Ranks can split the vocabulary: each looks up the tokens whose rows it has and returns zero for
// the others. The sum over the ranks is the result, bit for bit.
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

// Tokens as seen by a rank that has a part of the vocabulary.
struct OwnTokens {
  at::Tensor row;      // within the part; 0 for tokens of other ranks
  at::Tensor foreign;  // whether the token belongs to another rank
};
// Throws InvalidArgument for a value outside the vocabulary. On a GPU the check would have to wait
// for the device, so there such a token belongs to no rank.
OwnTokens own_tokens(const at::Tensor& tokens, const Split& vocabulary);

}  // namespace echelon
