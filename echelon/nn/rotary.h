// Rotary positions (Su et al., "RoFormer", 2021): the query and the key of token t are rotated by
// angles t * f[i], pair by pair, so their product depends on the distance between the tokens. A
// pair is (i, i + half) of a head, the layout of Llama's weights at Hugging Face. It has no
// parameters. A building block of layers that the blocks of a model share.
//
// The frequencies are f[i] = base^(-2i / head width). Llama 3 stretches frequencies whose
// wavelength, 2 pi / f, does not fit the context that the model was first trained on. For
// wavelengths beyond context / low they are divided by the factor, up to context / high they stay,
// and between the two f = (1 - s) f / factor + s f with s = (context / wavelength - low) / (high -
// low).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace echelon {

struct Pass;

struct RotaryOptions {
  std::int64_t head_width = 0;  // even
  std::int64_t context = 0;     // number of positions
  double base = 10000;
  double factor = 1;  // 1: no stretching
  double low = 1, high = 4;
  std::int64_t original_context = 8192;
};

std::vector<double> rotary_frequencies(const RotaryOptions& options);

class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options) : options_(options) {}

  // Computes the tables of sines and cosines for models of this type on this device.
  void bind(at::Device device, at::ScalarType type);

  enum class Direction { forth, back };
  // In place: x is [samples, tokens, at least heads * head width]; the first `heads` heads are
  // rotated. Gradients are rotated back. Tokens are at 0, 1, 2, …, or where the batch's "positions"
  // say. Packed documents do not need them: within a document only distances count, and no other is
  // seen.
  void rotate(at::Tensor x, std::int64_t heads, Direction direction, const Pass& pass) const;

 private:
  RotaryOptions options_;
  at::Tensor cosines_, sines_;  // [context, head width / 2], in fp32 or fp64
};

}  // namespace echelon
