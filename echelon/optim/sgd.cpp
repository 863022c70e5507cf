// Stochastic gradient descent with momentum, as PyTorch defines it (decay is added to the
// gradient):
//   g += decay * w,  u = momentum u + g,  w -= rate * (nesterov ? g + momentum u : u)
// The velocity starts at zero, so the first step needs no special case.
#include <ATen/ops/_fused_sgd.h>

#include "echelon/base/error.h"
#include "echelon/optim/optimizer.h"

namespace echelon {
namespace {

class Sgd : public Optimizer {
 public:
  explicit Sgd(const OptimOptions& options) : options_(options) {
    if (options.nesterov && options.momentum == 0) {
      throw InvalidArgument(
          "optim.nesterov needs momentum, but optim.momentum is 0; give it a value such as 0.9");
    }
  }

  std::vector<std::string> state_names() const override {
    return options_.momentum == 0 ? std::vector<std::string>{}
                                  : std::vector<std::string>{"momentum"};
  }

  void update(const std::vector<Slice>& slices, const StepScalars& scalars) const override {
    const std::size_t states = state_names().size();
    for (const auto& group : lists_by_group(slices, states)) {
      at::_fused_sgd_(
          group.values, group.grads,
          states == 0 ? at::TensorList() : at::TensorList(group.state[0]), group.decay,
          options_.momentum, rate_of(scalars, group.rate), /*dampening=*/0, options_.nesterov,
          /*maximize=*/false, /*is_first_step=*/false, scalars.grad_scale, scalars.skip);
    }
  }

 private:
  OptimOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimOptions& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace echelon
