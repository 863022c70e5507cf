// Rotary positions (Su et al., "RoFormer", 2021): the query and the key of token t are rotated by
// angles t * f[i], pair by pair, so that their product depends on how far apart they are. A pair is
// (i, i + half) of a head, as Hugging Face lays Llama's weights out. No parameters; a piece that
// layers are made of, which the blocks of a model share.
//
// The frequencies are f[i] = base^(-2i / head width). Llama 3 stretches those whose wavelength,
// 2 pi / f, does not fit the context that the model was trained on at first: beyond context / low
// they are divided by the factor, up to context / high they stay, and between the two
// f = (1 - s) f / factor + s f with s = (context / wavelength - low) / (high - low).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace echelon {

struct RotaryOptions {
  std::int64_t head_width = 0;  // even
  std::int64_t context = 0;     // positions that there are
  double base = 10000;
  double factor = 1;  // 1: no stretching
  double low = 1, high = 4;
  std::int64_t original_context = 8192;
};

std::vector<double> rotary_frequencies(const RotaryOptions& options);

class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options) : options_(options) {}

  // Makes the tables of sines and cosines for models of this type on this device.
  void bind(at::Device device, at::ScalarType type);

  enum class Direction { forth, back };
  // In place: x is [samples, tokens, heads * head width], of which the first so many heads turn. A
  // gradient turns back.
  void rotate(at::Tensor x, std::int64_t heads, Direction direction) const;

 private:
  RotaryOptions options_;
  at::Tensor cosines_, sines_;  // [context, head width / 2], in fp32 or fp64
};

}  // namespace echelon
