// LARS (You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017), for each
// parameter:
//   local = trust |w| / (|g| + decay |w|), or 1 if |w| or |g| is 0
//   u = momentum u + rate * local * (g + decay w),  w -= u
#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "echelon/optim/optimizer.h"

namespace echelon {
namespace {

class Lars : public Optimizer {
 public:
  explicit Lars(const OptimOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"momentum"}; }
  bool looks_at_parameters() const override { return true; }

  // Measures |w|² and |g|².
  void measure(const Slice& slice, const StepScalars& scalars, at::Tensor squares) const override {
    const at::Tensor scale = scalars.grad_scale ? scalars.grad_scale->to(at::kDouble).square()
                                                : at::ones_like(square_of(slice.value));
    squares.add_(at::stack({square_of(slice.value), square_of(slice.grad) / scale}));
  }

  void update(const std::vector<Slice>& slices, const StepScalars& scalars) const override {
    for (const auto& slice : slices) {
      const double decay = slice.decay;
      const at::Tensor norms = scalars.squares[slice.parameter].sqrt();
      const at::Tensor w = norms[0], g = norms[1];
      const at::Tensor local = at::where((w > 0).logical_and(g > 0),
                                         options_.trust * w / (g + decay * w), at::ones_like(w));
      const auto type = slice.value.scalar_type();
      const at::Tensor skip = scalars.skip > 0;
      const at::Tensor step = (local * rate_of(scalars, slice.rate)).masked_fill(skip, 0).to(type);
      at::Tensor velocity = slice.state[0], grad = usable_gradient(slice, scalars);
      grad.add_(slice.value, decay).mul_(step);
      const at::Tensor momentum = at::full_like(local, options_.momentum).masked_fill(skip, 1);
      velocity.mul_(momentum.to(type)).add_(grad);
      at::Tensor(slice.value).sub_(at::mul_out(grad, velocity, skip.logical_not().to(type)));
    }
  }

 private:
  OptimOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimOptions& options) {
  return std::make_unique<Lars>(options);
}

}  // namespace echelon
