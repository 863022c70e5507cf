#include "echelon/nn/target_share.h"

#include <ATen/TensorOperators.h>

namespace echelon {

bool counts_targets(const Pass& pass) {
  return pass.divisor.defined() || (pass.batch && pass.batch->targets.defined());
}

at::Tensor target_count(const Pass& pass) {
  return pass.divisor.defined() ? pass.divisor : pass.batch->targets.sum();
}

TargetShare target_share(const Pass& pass, std::int64_t rows) {
  if (!counts_targets(pass)) return {pass.weight / static_cast<double>(rows), {}};
  const at::Tensor count = target_count(pass);
  // Reading it from a GPU would wait for the device.
  if (count.is_cpu()) return {pass.weight / count.item<double>(), {}};
  return {pass.weight, count.reciprocal().to(at::kFloat)};
}

}  // namespace echelon
