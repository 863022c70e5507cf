// Formulas for the activations that the layers of a model hold for a micro-batch. Each family has
// its own (docs/recompute.md), and the memory forecast adds them up along a step.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>

#include "echelon/models/options.h"

namespace echelon {

// A micro-batch as one rank sees it.
struct ActivationShape {
  std::uint64_t tokens = 0;  // of all its samples
  at::ScalarType type = at::kFloat;
  std::uint64_t tensor = 1;     // ranks that split the products
  bool rows_are_split = false;  // sequence parallelism
  bool cuda = false;

  std::uint64_t element() const { return at::elementSize(type); }
  std::uint64_t by_rows() const { return rows_are_split ? tensor : 1; }
};

// Bytes of one layer.
struct LayerActivations {
  std::uint64_t kept = 0;      // from its forward to its backward
  std::uint64_t put_off = 0;   // from its input part to its weight part
  std::uint64_t forward = 0;   // while it runs, in addition to `kept`
  std::uint64_t backward = 0;  // the same, with the incoming gradient
};

// A last layer with a norm and the loss over the vocabulary (nn/vocabulary_loss.h).
LayerActivations loss_activations(const ModelOptions& options, const ActivationShape& shape);

// A gradient of the residual stream.
inline std::uint64_t stream_bytes(const ModelOptions& options, const ActivationShape& shape) {
  return shape.tokens * std::uint64_t(options.width) * shape.element();
}

}  // namespace echelon
