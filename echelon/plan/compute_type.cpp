#include "echelon/plan/compute_type.h"

#include "echelon/optim/master_update.h"

namespace echelon {

at::ScalarType compute_type(const TrainOptions& options) {
  const bool gpu = options.device == DeviceKind::cuda;
  if (options.precision == Precision::fp64) return at::kDouble;
  if (options.precision == Precision::fp16) return at::kHalf;
  if (options.precision == Precision::bf16 || (options.precision == Precision::automatic && gpu))
    return at::kBFloat16;
  return at::kFloat;
}

bool sums_in_fp32(const TrainOptions& options) {
  const auto type = compute_type(options);
  return options.reduce == ReduceType::fp32 && type != master_type(type);
}

}  // namespace echelon
