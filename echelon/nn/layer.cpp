#include "echelon/nn/layer.h"

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr const char* several =
    "a layer overrides forward and backward, or forward_all and backward_all if it has several "
    "inputs or outputs; this one has no such function";

}  // namespace

at::Tensor Layer::forward(const at::Tensor& /*input*/, Pass& /*pass*/) {
  throw InvalidArgument(several);
}

at::Tensor Layer::backward(const at::Tensor& /*grad_output*/, Pass& /*pass*/) {
  throw InvalidArgument(several);
}

Tensors Layer::forward_all(const Tensors& inputs, Pass& pass) {
  if (inputs.size() != 1)
    throw InvalidArgument(fmt::format(
        "the layer has one input and was given {} tensors: override forward_all and backward_all "
        "in a layer with several",
        inputs.size()));
  return {forward(inputs.front(), pass)};
}

Tensors Layer::backward_all(const Tensors& grad_outputs, Pass& pass) {
  return {backward(grad_outputs.empty() ? at::Tensor() : grad_outputs.front(), pass)};
}

}  // namespace echelon
