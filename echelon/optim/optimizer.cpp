#include "echelon/optim/optimizer.h"

#include "echelon/base/error.h"

namespace echelon {

std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options) {
  if (options.name == "adamw") return make_adamw(options);
  if (options.name == "sgd") return make_sgd(options);
  throw InvalidArgument("optim.name is \"" + options.name + "\"; allowed: adamw, sgd");
}

SliceLists::SliceLists(const std::vector<Slice>& slices, bool decay, std::size_t states)
    : state(states) {
  for (const auto& slice : slices) {
    if (slice.decay != decay) continue;
    values.push_back(slice.value);
    grads.push_back(slice.grad);
    for (std::size_t i = 0; i < states; ++i) state[i].push_back(slice.state[i]);
  }
}

}  // namespace echelon
