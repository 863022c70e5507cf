// LAMB (You et al., "Large batch optimization for deep learning: training BERT in 76 minutes",
// 2020), for each parameter:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g²
//   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay w
//   w -= rate * |w| / |u| * u, with a ratio of 1 if |w| or |u| is 0
#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>

#include "echelon/optim/optimizer.h"

namespace echelon {
namespace {

class Lamb : public Optimizer {
 public:
  explicit Lamb(const OptimOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool looks_at_parameters() const override { return true; }

  // Adds the gradient to the state, then measures |w|² and |u|².
  void measure(const Slice& slice, const StepScalars& scalars, at::Tensor squares) const override {
    const at::Tensor go = (1 - scalars.skip).to(slice.value.scalar_type());
    at::Tensor grad = usable_gradient(slice, scalars);
    at::Tensor mean = slice.state[0], square = slice.state[1];
    mean.lerp_(grad, go * (1 - options_.beta1));
    square.lerp_(grad.square_(), go * (1 - options_.beta2));
    squares.add_(at::stack({square_of(slice.value), square_of(direction(slice, scalars))}));
  }

  void update(const std::vector<Slice>& slices, const StepScalars& scalars) const override {
    for (const auto& slice : slices) {
      const at::Tensor squares = scalars.squares[slice.parameter];
      const at::Tensor step =
          rate_of(scalars, slice.rate) * (1 - scalars.skip) * norm_ratio(squares[0], squares[1]);
      at::Tensor(slice.value)
          .sub_(direction(slice, scalars).mul_(step.to(slice.value.scalar_type())));
    }
  }

 private:
  // u, from the current state, written to the gradient's memory.
  at::Tensor direction(const Slice& slice, const StepScalars& scalars) const {
    // If every step so far was skipped, t is 0 and the corrections would divide by zero.
    const at::Tensor t = scalars.updates.clamp_min(1).to(at::kDouble);
    const auto type = slice.value.scalar_type();
    const at::Tensor first = (1 - at::pow(options_.beta1, t)).to(type),
                     second = (1 - at::pow(options_.beta2, t)).sqrt().to(type);
    at::Tensor u = slice.grad;
    u.copy_(slice.state[1]).sqrt_().div_(second).add_(options_.epsilon).mul_(first);
    at::div_out(u, slice.state[0], u);
    if (slice.decay != 0) u.add_(slice.value, slice.decay);
    return u;
  }

  OptimOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimOptions& options) {
  return std::make_unique<Lamb>(options);
}

}  // namespace echelon
