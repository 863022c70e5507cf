// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019), per element:
//   w -= rate * decay * w
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w -= rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// One call of torch's fused kernel for each decay group.
#include <ATen/ops/_fused_adamw.h>

#include "echelon/optim/optimizer.h"

namespace echelon {
namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }

  void update(const std::vector<Slice>& slices, const StepScalars& scalars) const override {
    for (const bool decay : {true, false}) {
      SliceLists lists(slices, decay, 2);
      if (lists.values.empty()) continue;
      const std::vector<at::Tensor> updates(lists.values.size(), scalars.updates);
      at::_fused_adamw_(lists.values, lists.grads, lists.state[0], lists.state[1], {}, updates,
                        scalars.rate, options_.beta1, options_.beta2, decay ? options_.decay : 0,
                        options_.epsilon,
                        /*amsgrad=*/false, /*maximize=*/false, scalars.grad_scale, scalars.skip);
    }
  }

 private:
  OptimOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimOptions& options) {
  return std::make_unique<AdamW>(options);
}

}  // namespace echelon
