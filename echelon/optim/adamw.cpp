// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019), per element:
//   w -= rate * decay * w
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w -= rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// On a GPU, each parameter group takes one call of torch's fused kernel. On a CPU, our own kernel
// makes one pass over memory on all threads. An element's new values do not depend on how a range
// is cut, so state that is streamed through memory in pieces gets the same bits as state that stays
// there.
#include <ATen/ops/_fused_adamw.h>

#include <cmath>

#include "echelon/optim/adamw_cpu.h"
#include "echelon/optim/optimizer.h"

namespace echelon {
namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }

  bool takes(at::ScalarType type, at::Device device) const override {
    return device.is_cpu() && type == at::kBFloat16;
  }

  void update(const std::vector<Slice>& slices, const StepScalars& scalars) const override {
    if (!slices.empty() && slices.front().value.is_cpu()) return update_on_cpu(slices, scalars);
    for (const auto& group : lists_by_group(slices, 2)) {
      const std::vector<at::Tensor> updates(group.values.size(), scalars.updates);
      at::_fused_adamw_(group.values, group.grads, group.state[0], group.state[1], {}, updates,
                        rate_of(scalars, group.rate), options_.beta1, options_.beta2, group.decay,
                        options_.epsilon,
                        /*amsgrad=*/false, /*maximize=*/false, scalars.grad_scale, scalars.skip);
    }
  }

 private:
  void update_on_cpu(const std::vector<Slice>& slices, const StepScalars& scalars) const {
    if (scalars.skip.item<float>() != 0) return;
    const double rate_now = scalars.rate.item<double>(), t = scalars.updates.item<double>();
    for (const auto& slice : slices) {
      const double rate = rate_now * slice.rate;
      adamw_cpu(slice.value, slice.grad, slice.state[0], slice.state[1],
                {.keep = 1 - rate * slice.decay,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .step = rate / (1 - std::pow(options_.beta1, t)),
                 .root = std::sqrt(1 - std::pow(options_.beta2, t)),
                 .epsilon = options_.epsilon,
                 .scale = scalars.grad_scale ? scalars.grad_scale->item<double>() : 1});
    }
  }

  OptimOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimOptions& options) {
  return std::make_unique<AdamW>(options);
}

}  // namespace echelon
