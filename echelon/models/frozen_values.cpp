#include "echelon/models/frozen_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/models/weights_folder.h"

namespace echelon {

bool FrozenValues::read(const Parameter& whole, const at::Tensor& out) {
  if (!unreadable_.empty()) return false;
  try {
    if (!source_) source_ = initial_values(options_, stack_, seed_);
    (*source_)(whole, out);
    return true;
  } catch (const Error& error) {
    unreadable_ = error.what();
    return false;
  }
}

at::Tensor FrozenValues::exact(const Parameter& parameter, const at::Tensor& held) {
  const bool is_rounded = held.scalar_type() == at::kBFloat16 || held.scalar_type() == at::kHalf;
  if (parameter.trainable || !is_rounded) return held;
  Parameter whole = parameter;
  whole.shape = parameter.whole_shape();
  whole.split = {};
  const auto shape = at::TensorOptions(at::kCPU);
  const at::Tensor again = at::empty(whole.shape, shape.dtype(held.scalar_type())),
                   full = at::empty(whole.shape, shape.dtype(at::kFloat));
  // Both are read as training would: a value of the file is rounded once.
  if (read(whole, again) && at::equal(again, held.cpu()) && read(whole, full)) return full;
  if (rounded_++ == 0) first_rounded_ = parameter.name;
  return held;
}

std::string FrozenValues::warning() const {
  if (rounded_ == 0) return {};
  const std::string what =
      fmt::format("{} frozen parameter{} as rounded for the computation, the first of them {}",
                  rounded_, rounded_ == 1 ? " is" : "s are", first_rounded_);
  if (!unreadable_.empty())
    return fmt::format("{}, since the values before that cannot be read: {}", what, unreadable_);
  return fmt::format("{}, since {} other values than training began with", what,
                     options_.init.empty() ? std::string("train.seed gives")
                                           : fmt::format("{} has", options_.init));
}

}  // namespace echelon
