#include "echelon/models/activations.h"

#include <algorithm>

namespace echelon {

// The input, the output of the norm, the gradient of the logits, and a block of rows of
// log-probabilities.
LayerActivations loss_activations(const ModelOptions& options, const ActivationShape& shape) {
  const auto d = std::uint64_t(options.width), vocab = std::uint64_t(options.vocab);
  const std::uint64_t part = (vocab + shape.tensor - 1) / shape.tensor;
  const std::uint64_t normed = options.recompute == Recompute::selective ? 0 : d;
  const std::uint64_t block = std::min<std::uint64_t>(shape.tokens * part * shape.element(),
                                                      shape.cuda ? 512 << 20 : 4 << 20);
  // In fp16 that block is fp32. In bf16 a CPU has an fp32 copy of it, and its result.
  const std::uint64_t rows = shape.type == at::kHalf                      ? 2 * block
                             : shape.type == at::kBFloat16 && !shape.cuda ? 4 * block
                                                                          : block;
  return {.kept = shape.tokens * (d + normed + part) * shape.element(),
          .put_off = shape.tokens * (d + part) * shape.element(),
          .forward = rows + shape.tokens * (d - normed) * shape.element(),
          .backward = stream_bytes(options, shape)};
}

}  // namespace echelon
