#include "echelon/optim/adamw_cpu.h"

#include <cstdint>

#include "echelon/kernels/cpu/adamw.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

constexpr std::int64_t grain = 1 << 14;  // minimum number of elements per thread

template <class T, class Grad>
void over(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& mean,
          const at::Tensor& square, const kernels::AdamwFactors& factors) {
  T *w = value.data_ptr<T>(), *m = mean.data_ptr<T>(), *v = square.data_ptr<T>();
  const auto* g = static_cast<const Grad*>(grad.const_data_ptr());
  parallel_over(value, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels::cpu::adamw(w + begin, g + begin, m + begin, v + begin, end - begin, factors);
  });
}

}  // namespace

void adamw_cpu(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& mean,
               const at::Tensor& square, const kernels::AdamwFactors& factors) {
  if (value.scalar_type() == at::kDouble)
    over<double, double>(value, grad, mean, square, factors);
  else if (grad.scalar_type() == at::kBFloat16)
    over<float, kernels::Bf16>(value, grad, mean, square, factors);
  else
    over<float, float>(value, grad, mean, square, factors);
}

}  // namespace echelon
