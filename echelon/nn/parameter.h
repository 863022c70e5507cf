// A named parameter of a layer. It is first only described (name, shape, initialisation) and takes
// no memory; `value` and `grad` become views into a flat unit when the Stack allocates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/dimension.h"
#include "echelon/nn/split.h"
#include "echelon/nn/update_rule.h"

namespace echelon {

class TensorGroup;

// How initial values are made. Each element is a pure function of (seed, parameter name, element
// index), so every layout over ranks starts from the same numbers.
struct Init {
  enum class Kind { zeros, ones, normal, given };
  Kind kind = Kind::zeros;
  double stddev = 0;  // normal
  at::Tensor given;   // existing values, e.g. of a user's module

  static Init zeros() { return {Kind::zeros, 0, {}}; }
  static Init ones() { return {Kind::ones, 0, {}}; }
  static Init normal(double stddev) { return {Kind::normal, stddev, {}}; }
  static Init from(at::Tensor values) { return {Kind::given, 0, std::move(values)}; }
};

struct Parameter {
  std::string name;                 // unique in the Stack: "transformer.h.0.ln_1.weight"
  std::vector<std::int64_t> shape;  // what this process holds: the whole parameter or a part
  Init init;                        // of the whole parameter
  UpdateRule update;                // how fast it trains, and its weight decay
  bool trainable = true;            // false: no gradient, no optimiser state
  int layer = 0;                    // the layer that owns it
  bool here = true;                 // this process has its layer (Stack::keep) and allocates it
  bool counted = true;  // false: another rank also has it and counts it in norms and files
  bool copied = false;  // layers on several ranks share it; each rank has a copy
  // Ranks that differ only along these dimensions hold the same parameter and process different
  // samples, so its gradient is summed over them. A layer whose parameters differ between such
  // ranks (experts) says so when it declares them.
  Dimensions summed_over = batch_dimensions;

  // If ranks split the model's products (Stack::split): which splits its building block supports,
  // which part this rank has, and the ranks it is split over (null: none).
  Splits splits = Splits::no;
  Split split;
  std::shared_ptr<TensorGroup> group;

  at::Tensor value;
  at::Tensor grad;         // undefined if not trainable
  std::int64_t begin = 0;  // within the Stack's trainable or frozen buffer

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const auto size : shape) n *= size;
    return n;
  }

  std::vector<std::int64_t> whole_shape() const {
    auto whole = shape;
    if (split.is_part()) whole[std::size_t(split.dimension)] = split.whole;
    return whole;
  }

  // The first gradient of a step overwrites the buffer, and later ones (micro-batches, a tied use)
  // add to it, so the buffer is never cleared. `beta` is the factor of the old contents, as in
  // GEMM's beta*C + A*B.
  double grad_beta() { return std::exchange(grad_written, true) ? 1.0 : 0.0; }
  // For gradients that an operator returns as a tensor. Does nothing if it is not trainable.
  void add_grad(const at::Tensor& part);
  void zero_unwritten_grad();  // sets it to zero if the step did not write it

  bool grad_written = false;
};

}  // namespace echelon
