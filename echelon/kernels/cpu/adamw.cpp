#include "echelon/kernels/cpu/adamw.h"

#include <bit>
#include <cmath>

#include "echelon/kernels/cpu/clones.h"

namespace echelon::kernels::cpu {
namespace {

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

// Clones must be functions, not templates.
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

}  // namespace

void adamw(double* value, const double* grad, double* mean, double* square, std::int64_t count,
           const AdamwFactors& factors) {
  run_double(value, grad, mean, square, count, Factors<double>(factors));
}
void adamw(float* value, const float* grad, float* mean, float* square, std::int64_t count,
           const AdamwFactors& factors) {
  run_float(value, grad, mean, square, count, Factors<float>(factors));
}
void adamw(float* value, const Bf16* grad, float* mean, float* square, std::int64_t count,
           const AdamwFactors& factors) {
  run_bf16(value, grad, mean, square, count, Factors<float>(factors));
}

}  // namespace echelon::kernels::cpu
