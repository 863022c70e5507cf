// Frozen parameters in full precision, for files of weights.
//
// In bf16 and fp16 a trainable parameter has a master in fp32. A frozen one is held only in the
// type of the computation, and so in a saved state: rounded. Nothing has changed it, so whoever
// writes weights reads it once more from where training got it (initial_values), one parameter at
// a time. If those values still round to what is held, they are the exact ones. Otherwise, for
// example because model.init has been overwritten, the rounded values are all there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "echelon/models/options.h"
#include "echelon/nn/stack.h"

namespace echelon {

class FrozenValues {
 public:
  // The options, stack and seed with which training began. Reads nothing before it has to.
  FrozenValues(const ModelOptions& options, const Stack& stack, std::uint64_t seed)
      : options_(options), stack_(stack), seed_(seed) {}

  // The whole parameter in full precision, on the CPU where it had to be read. `held` is the whole
  // parameter as the model or its state has it. What trains, and what is not rounded, is returned
  // as it is.
  at::Tensor exact(const Parameter& parameter, const at::Tensor& held);

  // A sentence about the parameters that could not be read again; empty: none.
  std::string warning() const;

 private:
  bool read(const Parameter& whole, const at::Tensor& out);

  const ModelOptions& options_;
  const Stack& stack_;
  std::uint64_t seed_;
  std::optional<ValueSource> source_;
  std::string unreadable_;    // why model.init cannot be read
  std::int64_t rounded_ = 0;  // parameters returned as they are held
  std::string first_rounded_;
};

}  // namespace echelon
