#include "echelon/optim/adamw_cpu.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "echelon/base/clones.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

constexpr std::int64_t grain = 1 << 14;  // elements that are worth a thread

template <class T>
struct Factors {
  explicit Factors(const AdamwFactors& f)
      : keep(T(f.keep)),
        beta1(T(f.beta1)),
        rest1(T(1 - f.beta1)),
        beta2(T(f.beta2)),
        rest2(T(1 - f.beta2)),
        step(T(f.step)),
        root(T(f.root)),
        epsilon(T(f.epsilon)),
        scale(T(f.scale)) {}
  T keep, beta1, rest1, beta2, rest2, step, root, epsilon, scale;
};

struct Bf16 {  // the upper half of a float
  std::uint16_t bits;
};
ECHELON_INLINE float widen(Bf16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }
ECHELON_INLINE float widen(float x) { return x; }
ECHELON_INLINE double widen(double x) { return x; }

template <class T, class Grad>
ECHELON_INLINE void run(T* __restrict w, const Grad* __restrict g, T* __restrict m, T* __restrict v,
                        std::int64_t n, const Factors<T> f) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T grad = widen(g[i]) / f.scale;
    const T mean = f.beta1 * m[i] + f.rest1 * grad;
    const T square = f.beta2 * v[i] + f.rest2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    w[i] = w[i] * f.keep - f.step * (mean / (std::sqrt(square) / f.root + f.epsilon));
  }
}

// Clones are made of functions, not of templates.
ECHELON_CLONES void run_double(double* w, const double* g, double* m, double* v, std::int64_t n,
                               const Factors<double>& f) {
  run(w, g, m, v, n, f);
}
ECHELON_CLONES void run_float(float* w, const float* g, float* m, float* v, std::int64_t n,
                              const Factors<float>& f) {
  run(w, g, m, v, n, f);
}
ECHELON_CLONES void run_bf16(float* w, const Bf16* g, float* m, float* v, std::int64_t n,
                             const Factors<float>& f) {
  run(w, g, m, v, n, f);
}

template <class T, class Grad>
void over(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& mean,
          const at::Tensor& square, const AdamwFactors& factors,
          void (*kernel)(T*, const Grad*, T*, T*, std::int64_t, const Factors<T>&)) {
  const Factors<T> f(factors);
  T *w = value.data_ptr<T>(), *m = mean.data_ptr<T>(), *v = square.data_ptr<T>();
  const auto* g = static_cast<const Grad*>(grad.const_data_ptr());
  parallel_over(value, grain, [&](std::int64_t begin, std::int64_t end) {
    kernel(w + begin, g + begin, m + begin, v + begin, end - begin, f);
  });
}

}  // namespace

void adamw_cpu(at::Tensor value, const at::Tensor& grad, at::Tensor mean, at::Tensor square,
               const AdamwFactors& factors) {
  if (value.scalar_type() == at::kDouble)
    over(value, grad, mean, square, factors, run_double);
  else if (grad.scalar_type() == at::kBFloat16)
    over(value, grad, mean, square, factors, run_bf16);
  else
    over(value, grad, mean, square, factors, run_float);
}

}  // namespace echelon
