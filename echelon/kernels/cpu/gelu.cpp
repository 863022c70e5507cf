// (1 + tanh(u)) / 2 is the logistic function of 2u, so gelu(x) = x s with s = 1 / (1 + 2^t) and
// t = -2u log2(e). Nothing cancels there, nor in the derivative s + x s (1 - s) (2u)', where
// 1 - s = 2^t s.
#include "echelon/kernels/cpu/gelu.h"

#include <numbers>

#include "echelon/kernels/cpu/lanes.h"

namespace echelon::kernels::cpu {
namespace {

constexpr float cubic = 0.044715f;
constexpr float slope = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float slope_log2 = slope * std::numbers::log2e_v<float>;
// Beyond this, s is 0 or 1 to full precision, and 2^t is still a finite float.
constexpr float edge = 10;

template <class L>
struct Logistic {
  Floats<L> power, value;  // 2^t and s
};

template <class L>
ECHELON_INLINE Logistic<L> logistic(Floats<L> x) {
  const Floats<L> power = exp2<L>(-slope_log2 * x * (1 + cubic * x * x));
  return {power, 1 / (1 + power)};
}

// NaN stays NaN.
template <class L>
ECHELON_INLINE Floats<L> at_least(Floats<L> x, float bound) {
  return x < bound ? all<L>(bound) : x;
}
template <class L>
ECHELON_INLINE Floats<L> at_most(Floats<L> x, float bound) {
  return x > bound ? all<L>(bound) : x;
}

template <class L>
ECHELON_INLINE Floats<L> value(Floats<L> x) {
  const Floats<L> bounded = at_least<L>(x, -edge);
  return bounded * logistic<L>(at_most<L>(bounded, edge)).value;
}

template <class L>
ECHELON_INLINE Floats<L> derivative(Floats<L> x) {
  const Floats<L> bounded = at_most<L>(at_least<L>(x, -edge), edge);
  const auto [power, s] = logistic<L>(bounded);
  return s + s * (power * s) * (slope * bounded * (1 + 3 * cubic * bounded * bounded));
}

struct Span {
  float* to;  // the values, or the gradient that changes
  const float* x;
  std::int64_t count;
};
template <class L>
ECHELON_INLINE void forward_kernel(const Span& a) {
  std::int64_t i = 0;
  for (; i + L::width <= a.count; i += L::width) store<L>(a.to + i, value<L>(load<L>(a.x + i)));
  const std::int64_t rest = a.count - i;
  if (rest > 0) store<L>(a.to + i, value<L>(load<L>(a.x + i, rest)), rest);
}
ECHELON_LANES_FUNCTION(forward, Span, forward_kernel)

template <class L>
ECHELON_INLINE void backward_kernel(const Span& a) {
  std::int64_t i = 0;
  for (; i + L::width <= a.count; i += L::width)
    store<L>(a.to + i, load<L>(a.to + i) * derivative<L>(load<L>(a.x + i)));
  const std::int64_t rest = a.count - i;
  if (rest > 0) {
    store<L>(a.to + i, load<L>(a.to + i, rest) * derivative<L>(load<L>(a.x + i, rest)), rest);
  }
}
ECHELON_LANES_FUNCTION(backward, Span, backward_kernel)

}  // namespace

void tanh_gelu(const float* x, float* y, std::int64_t count) { forward({y, x, count}); }

void tanh_gelu_backward(const float* x, float* grad, std::int64_t count) {
  backward({grad, x, count});
}

}  // namespace echelon::kernels::cpu
