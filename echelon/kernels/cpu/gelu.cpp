// gelu(x) = x P(x), where P is the distribution function of the standard normal, and its derivative
// is P(x) + x exp(-x^2/2) / sqrt(2 pi). Below zero, where 1 + erf would cancel, P is taken from its
// tail: with a = |x| and t = 1 / (1 + 0.35 a), P(-a) = exp(-a^2/2) t Q(t), where Q is a polynomial.
//
// In the tanh approximation, (1 + tanh(u)) / 2 is the logistic function of 2u, so gelu(x) = x s
// with s = 1 / (1 + 2^t) and t = -2u log2(e). Nothing cancels there, nor in the derivative s + x s
// (1 - s) (2u)', where 1 - s = 2^t s.
#include "echelon/kernels/cpu/gelu.h"

#include <numbers>

#include "echelon/kernels/cpu/lanes.h"

namespace echelon::kernels::cpu {
namespace {

// NaN stays NaN.
template <class L>
ECHELON_INLINE Floats<L> at_least(Floats<L> x, float bound) {
  return x < bound ? all<L>(bound) : x;
}
template <class L>
ECHELON_INLINE Floats<L> at_most(Floats<L> x, float bound) {
  return x > bound ? all<L>(bound) : x;
}

struct Exact {
  // Beyond this, P is 0 or 1 to full precision, and the exponential is still in the range of exp2.
  static constexpr float edge = 13;

  template <class L>
  struct Parts {
    Floats<L> bell, distribution;  // exp(-x^2/2) and P(x)
  };

  // The coefficients are a least-squares fit of P(-a) exp(a^2/2) / t up to a = 13, weighted until
  // its relative error, 4e-8, was even.
  template <class L>
  ECHELON_INLINE static Parts<L> parts(Floats<L> x) {
    const Floats<L> a = at_most<L>(x < 0.0f ? -x : x, edge);
    const Floats<L> t = 1 / (1 + 0.35f * a);
    Floats<L> q = -0.029095128f * t + 0.143719702f;
    q = q * t - 0.25518257f;
    q = q * t + 0.158552694f;
    q = q * t - 0.022671049f;
    q = q * t + 0.105317015f;
    q = q * t + 0.11988274f;
    q = q * t + 0.139854752f;
    q = q * t + 0.139621828f;
    const Floats<L> bell = exp2<L>(-0.5f * std::numbers::log2e_v<float> * a * a);
    const Floats<L> tail = bell * (t * q);
    return {bell, x < 0.0f ? tail : 1 - tail};
  }

  template <class L>
  ECHELON_INLINE static Floats<L> value(Floats<L> x) {
    const Floats<L> bounded = at_least<L>(x, -edge);
    return bounded * parts<L>(bounded).distribution;
  }

  template <class L>
  ECHELON_INLINE static Floats<L> derivative(Floats<L> x) {
    const Floats<L> bounded = at_most<L>(at_least<L>(x, -edge), edge);
    const auto [bell, distribution] = parts<L>(bounded);
    constexpr float height = 0.39894228f;  // 1 / sqrt(2 pi)
    return distribution + bounded * (height * bell);
  }
};

struct Tanh {
  static constexpr float cubic = 0.044715f;
  static constexpr float slope = 1.5957691216f;  // 2 sqrt(2/pi)
  static constexpr float slope_log2 = slope * std::numbers::log2e_v<float>;
  // Beyond this, s is 0 or 1 to full precision, and 2^t is still a finite float.
  static constexpr float edge = 10;

  template <class L>
  struct Logistic {
    Floats<L> power, value;  // 2^t and s
  };

  template <class L>
  ECHELON_INLINE static Logistic<L> logistic(Floats<L> x) {
    const Floats<L> power = exp2<L>(-slope_log2 * x * (1 + cubic * x * x));
    return {power, 1 / (1 + power)};
  }

  template <class L>
  ECHELON_INLINE static Floats<L> value(Floats<L> x) {
    const Floats<L> bounded = at_least<L>(x, -edge);
    return bounded * logistic<L>(at_most<L>(bounded, edge)).value;
  }

  template <class L>
  ECHELON_INLINE static Floats<L> derivative(Floats<L> x) {
    const Floats<L> bounded = at_most<L>(at_least<L>(x, -edge), edge);
    const auto [power, s] = logistic<L>(bounded);
    return s + s * (power * s) * (slope * bounded * (1 + 3 * cubic * bounded * bounded));
  }
};

struct Span {
  float* to;  // the values, or the gradient that changes
  const float* x;
  std::int64_t count;
};

template <class Gelu, class L>
ECHELON_INLINE void forward_kernel(const Span& a) {
  std::int64_t i = 0;
  for (; i + L::width <= a.count; i += L::width)
    store<L>(a.to + i, Gelu::template value<L>(load<L>(a.x + i)));
  const std::int64_t rest = a.count - i;
  if (rest > 0) store<L>(a.to + i, Gelu::template value<L>(load<L>(a.x + i, rest)), rest);
}

template <class Gelu, class L>
ECHELON_INLINE void backward_kernel(const Span& a) {
  std::int64_t i = 0;
  for (; i + L::width <= a.count; i += L::width)
    store<L>(a.to + i, load<L>(a.to + i) * Gelu::template derivative<L>(load<L>(a.x + i)));
  const std::int64_t rest = a.count - i;
  if (rest > 0) {
    store<L>(a.to + i,
             load<L>(a.to + i, rest) * Gelu::template derivative<L>(load<L>(a.x + i, rest)), rest);
  }
}

template <class L>
ECHELON_INLINE void exact_forward(const Span& a) {
  forward_kernel<Exact, L>(a);
}
template <class L>
ECHELON_INLINE void exact_backward(const Span& a) {
  backward_kernel<Exact, L>(a);
}
template <class L>
ECHELON_INLINE void tanh_forward(const Span& a) {
  forward_kernel<Tanh, L>(a);
}
template <class L>
ECHELON_INLINE void tanh_backward(const Span& a) {
  backward_kernel<Tanh, L>(a);
}
ECHELON_LANES_FUNCTION(run_exact_forward, Span, exact_forward)
ECHELON_LANES_FUNCTION(run_exact_backward, Span, exact_backward)
ECHELON_LANES_FUNCTION(run_tanh_forward, Span, tanh_forward)
ECHELON_LANES_FUNCTION(run_tanh_backward, Span, tanh_backward)

}  // namespace

void gelu(const float* x, float* y, std::int64_t count) { run_exact_forward({y, x, count}); }
void tanh_gelu(const float* x, float* y, std::int64_t count) { run_tanh_forward({y, x, count}); }

void gelu_backward(const float* x, float* grad, std::int64_t count) {
  run_exact_backward({grad, x, count});
}
void tanh_gelu_backward(const float* x, float* grad, std::int64_t count) {
  run_tanh_backward({grad, x, count});
}

}  // namespace echelon::kernels::cpu
