#include "echelon/optim/adamw_cpu.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "echelon/nn/parallel_over.h"

// The best that the machine has, chosen when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define ECHELON_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ECHELON_CLONES
#endif

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

// bf16 is the upper half of a float; back, the nearest one, to even, as torch rounds.
struct Bf16 {
  std::uint16_t bits;
};
inline __attribute__((always_inline)) float widen(Bf16 x) {
  return std::bit_cast<float>(std::uint32_t(x.bits) << 16);
}
inline __attribute__((always_inline)) float widen(float x) { return x; }
inline __attribute__((always_inline)) double widen(double x) { return x; }
inline __attribute__((always_inline)) void publish(Bf16* to, std::int64_t i, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to[i].bits = static_cast<std::uint16_t>(x != x ? 0x7fc0 : rounded);
}

template <class T, class Grad, class Published>
inline __attribute__((always_inline)) void run(T* __restrict w, const Grad* __restrict g,
                                               T* __restrict m, T* __restrict v,
                                               Published published, std::int64_t n,
                                               const Factors<T> f) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T grad = widen(g[i]) / f.scale;
    const T mean = f.beta1 * m[i] + f.rest1 * grad;
    const T square = f.beta2 * v[i] + f.rest2 * grad * grad;
    const T value = w[i] * f.keep - f.step * (mean / (std::sqrt(square) / f.root + f.epsilon));
    m[i] = mean;
    v[i] = square;
    w[i] = value;
    if constexpr (std::is_pointer_v<Published>) publish(published, i, value);
  }
}

// Clones are made of functions, not of templates.
#define ECHELON_ADAMW(name, T, Grad, Published)                                                  \
  ECHELON_CLONES void name(T* w, const Grad* g, T* m, T* v, Published published, std::int64_t n, \
                           const Factors<T>& f) {                                                \
    run(w, g, m, v, published, n, f);                                                            \
  }
ECHELON_ADAMW(run_double, double, double, std::nullptr_t)
ECHELON_ADAMW(run_float, float, float, std::nullptr_t)
ECHELON_ADAMW(run_bf16, float, Bf16, std::nullptr_t)
ECHELON_ADAMW(run_bf16_publishing, float, Bf16, Bf16*)
#undef ECHELON_ADAMW

template <class T, class Grad, class Published, class Kernel>
void over(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& mean,
          const at::Tensor& square, const AdamwFactors& factors, Published published,
          const Kernel& kernel) {
  const Factors<T> f(factors);
  T *w = value.data_ptr<T>(), *m = mean.data_ptr<T>(), *v = square.data_ptr<T>();
  const auto* g = static_cast<const Grad*>(grad.const_data_ptr());
  parallel_over(value, grain, [&](std::int64_t begin, std::int64_t end) {
    Published there = published;
    if constexpr (std::is_pointer_v<Published>) there += begin;
    kernel(w + begin, g + begin, m + begin, v + begin, there, end - begin, f);
  });
}

}  // namespace

void adamw_cpu(at::Tensor value, const at::Tensor& grad, at::Tensor mean, at::Tensor square,
               const AdamwFactors& factors, at::Tensor published) {
  if (value.scalar_type() == at::kDouble)
    over<double, double>(value, grad, mean, square, factors, nullptr, run_double);
  else if (grad.scalar_type() == at::kFloat)
    over<float, float>(value, grad, mean, square, factors, nullptr, run_float);
  else if (!published.defined())
    over<float, Bf16>(value, grad, mean, square, factors, nullptr, run_bf16);
  else
    over<float, Bf16>(value, grad, mean, square, factors, static_cast<Bf16*>(published.data_ptr()),
                      run_bf16_publishing);
}

}  // namespace echelon
