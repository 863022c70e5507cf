// A named parameter of a layer. It is described first (name, shape, how its first values are made)
// and costs nothing; `value` and `grad` become views into a flat unit when the Stack allocates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace echelon {

// How first values are made. Each element is a pure function of (seed, parameter name, element
// index), so every layout over ranks starts from the same numbers.
struct Init {
  enum class Kind { zeros, ones, normal, given };
  Kind kind = Kind::zeros;
  double stddev = 0;  // normal
  at::Tensor given;   // values that exist already, e.g. of a user's module

  static Init zeros() { return {Kind::zeros, 0, {}}; }
  static Init ones() { return {Kind::ones, 0, {}}; }
  static Init normal(double stddev) { return {Kind::normal, stddev, {}}; }
  static Init from(at::Tensor values) { return {Kind::given, 0, std::move(values)}; }
};

struct Parameter {
  std::string name;  // unique in the Stack: "transformer.h.0.ln_1.weight"
  std::vector<std::int64_t> shape;
  Init init;
  bool decay = true;      // weight decay applies: matrices yes, norms and biases no
  bool trainable = true;  // false: no gradient, no optimiser state
  int layer = 0;          // the layer that owns it

  at::Tensor value;
  at::Tensor grad;         // undefined where not trainable
  std::int64_t begin = 0;  // within the Stack's buffer of this trainability

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const auto size : shape) n *= size;
    return n;
  }

  // The first gradient of a step overwrites the buffer and later ones (micro-batches, a tied use)
  // add to it, so the buffer is never cleared: `beta` is the factor for what is there, as in GEMM's
  // beta*C + A*B.
  double grad_beta() { return std::exchange(grad_written, true) ? 1.0 : 0.0; }
  void add_grad(const at::Tensor& part);  // for gradients that an operator hands back as a tensor
  void zero_unwritten_grad();             // a parameter that a step did not use has gradient zero

  bool grad_written = false;
};

}  // namespace echelon
