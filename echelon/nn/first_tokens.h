// The first token of each sample, as a classification head takes it: the rows of [samples, tokens,
// width] become [samples, width]. A building block of layers. If ranks split rows, the tokens are
// exchanged: each rank adds its own to zeros, and the sum over the ranks is the result, bit for
// bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace echelon {

class TensorGroup;
struct Pass;

at::Tensor first_tokens(const at::Tensor& x, const std::shared_ptr<TensorGroup>& group,
                        const Pass& pass);

// The gradient of x: zero except for the first tokens.
at::Tensor first_tokens_backward(const at::Tensor& grad, const std::shared_ptr<TensorGroup>& group,
                                 const Pass& pass);

}  // namespace echelon
