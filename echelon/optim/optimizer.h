// An optimiser: one update rule over slices of flat units. Each optimiser is one file, and all
// files have the same shape: the names of the state it keeps per element, and `update`. One of your
// own derives from Optimizer as well, and is passed as OptimOptions::custom; docs/embedding.md has
// an example.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/optim/options.h"

namespace echelon {

// A contiguous range of parameters of one group, with all tensors that its update reads and writes.
// All are flat and have the same length and type.
struct Slice {
  at::Tensor value;
  at::Tensor grad;                // the update may overwrite it
  std::vector<at::Tensor> state;  // in the order of state_names()
  double rate = 1;                // factor of the learning rate
  double decay = 0;               // weight decay
  int parameter = -1;             // its index, for an optimiser that needs whole parameters
};

// Values that change from step to step. They are scalars on the device, so a captured graph reads
// the current values and no step waits for the host.
struct StepScalars {
  at::Tensor rate;                       // learning rate, float (double in fp64 on a CPU)
  at::Tensor updates;                    // number of updates including this one, float
  std::optional<at::Tensor> grad_scale;  // gradients are divided by this, float
  at::Tensor skip;                       // 1: leave values and state unchanged, float
  at::Tensor squares;                    // [parameters, 2], see measure()
};

// The learning rate of a slice: that of the step times its factor. A scalar on the device.
at::Tensor rate_of(const StepScalars& scalars, double factor);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // The state that it keeps for each element, which begins at zero. States are saved by these
  // names.
  virtual std::vector<std::string> state_names() const = 0;
  // Updates values and state of all slices, at the rate rate_of(scalars, slice.rate). Must divide
  // gradients by scalars.grad_scale and change nothing where scalars.skip is 1 (usable_gradient).
  virtual void update(const std::vector<Slice>& slices, const StepScalars& scalars) const = 0;
  // Whether it accepts gradients of this type. If not, they are converted to the type of the
  // values.
  virtual bool takes(at::ScalarType /*type*/, at::Device /*device*/) const { return false; }

  // An optimiser whose steps depend on the norms of whole parameters gets slices of one parameter
  // each and measures all of them before the first update: it adds this slice's contribution to
  // `squares`, two numbers. These are summed over all slices of a parameter, including slices of
  // other owners, and passed to update() as scalars.squares. Both calls see the slice's gradient.
  virtual bool looks_at_parameters() const { return false; }
  virtual void measure(const Slice& /*slice*/, const StepScalars& /*scalars*/,
                       at::Tensor /*squares*/) const {}
};

std::unique_ptr<Optimizer> make_adamw(const OptimOptions& options);
std::unique_ptr<Optimizer> make_sgd(const OptimOptions& options);
std::unique_ptr<Optimizer> make_lars(const OptimOptions& options);
std::unique_ptr<Optimizer> make_lamb(const OptimOptions& options);
// By options.name, or options.custom. Throws InvalidArgument if it cannot be.
std::shared_ptr<const Optimizer> make_optimizer(const OptimOptions& options);

// The slice's gradient, divided by grad_scale in place; zeros if the update is to be skipped, so
// that no non-finite value enters the state.
at::Tensor usable_gradient(const Slice& slice, const StepScalars& scalars);

// |x|² as double, 0-dimensional.
at::Tensor square_of(const at::Tensor& x);

// sqrt(above / below), or 1 if either is 0: the ratio of two norms, given their squares.
at::Tensor norm_ratio(const at::Tensor& above, const at::Tensor& below);

// The slices of one parameter group as the parallel lists that torch's fused kernels expect.
struct SliceLists {
  double rate = 1, decay = 0;  // as in Slice
  std::vector<at::Tensor> values, grads;
  std::vector<std::vector<at::Tensor>> state;  // [state][slice]
};
std::vector<SliceLists> lists_by_group(const std::vector<Slice>& slices, std::size_t states);

}  // namespace echelon
