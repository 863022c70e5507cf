// With s = 1 / (1 + 2^t) and t = -gate log2(e): y = gate s up. The gradient of up is that of y
// times gate s, that of gate times up (s + gate s (1 - s)), where 1 - s = 2^t s: nothing cancels.
#include "echelon/kernels/cpu/swiglu.h"

#include <numbers>

#include "echelon/kernels/cpu/lanes.h"

namespace echelon::kernels::cpu {
namespace {

// Beyond this, s is 0 or 1 to full precision, and 2^t is still a finite float.
constexpr float edge = 87;

template <class L>
struct Logistic {
  Floats<L> power, value;  // 2^t and s
};

// NaN stays NaN.
template <class L>
ECHELON_INLINE Logistic<L> logistic(Floats<L> x) {
  const Floats<L> from_below = x < -edge ? all<L>(-edge) : x;
  const Floats<L> bounded = from_below > edge ? all<L>(edge) : from_below;
  const Floats<L> power = exp2<L>(-std::numbers::log2e_v<float> * bounded);
  return {power, 1 / (1 + power)};
}

template <class L>
ECHELON_INLINE Floats<L> value(Floats<L> gate, Floats<L> up) {
  return gate * logistic<L>(gate).value * up;
}

template <class L>
struct Grads {
  Floats<L> gate, up;
};
template <class L>
ECHELON_INLINE Grads<L> grads(Floats<L> gate, Floats<L> up, Floats<L> grad) {
  const auto [power, s] = logistic<L>(gate);
  return {grad * up * (s + gate * s * (power * s)), grad * (gate * s)};
}

struct Forward {
  const float* hidden;
  float* y;
  std::int64_t rows, width;
};
template <class L>
ECHELON_INLINE void forward_kernel(const Forward& a) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const float* const gate = a.hidden + row * 2 * a.width;
    const float* const up = gate + a.width;
    float* const y = a.y + row * a.width;
    std::int64_t i = 0;
    for (; i + L::width <= a.width; i += L::width)
      store<L>(y + i, value<L>(load<L>(gate + i), load<L>(up + i)));
    const std::int64_t rest = a.width - i;
    if (rest > 0) store<L>(y + i, value<L>(load<L>(gate + i, rest), load<L>(up + i, rest)), rest);
  }
}
ECHELON_LANES_FUNCTION(forward, Forward, forward_kernel)

struct Backward {
  const float *hidden, *grad;
  float* grad_hidden;
  std::int64_t rows, width;
};
template <class L>
ECHELON_INLINE void backward_kernel(const Backward& a) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const float* const gate = a.hidden + row * 2 * a.width;
    const float* const up = gate + a.width;
    const float* const grad = a.grad + row * a.width;
    float* const grad_gate = a.grad_hidden + row * 2 * a.width;
    float* const grad_up = grad_gate + a.width;
    std::int64_t i = 0;
    for (; i + L::width <= a.width; i += L::width) {
      const auto both = grads<L>(load<L>(gate + i), load<L>(up + i), load<L>(grad + i));
      store<L>(grad_gate + i, both.gate);
      store<L>(grad_up + i, both.up);
    }
    const std::int64_t rest = a.width - i;
    if (rest > 0) {
      const auto both =
          grads<L>(load<L>(gate + i, rest), load<L>(up + i, rest), load<L>(grad + i, rest));
      store<L>(grad_gate + i, both.gate, rest);
      store<L>(grad_up + i, both.up, rest);
    }
  }
}
ECHELON_LANES_FUNCTION(backward, Backward, backward_kernel)

}  // namespace

void swiglu(const float* hidden, float* y, std::int64_t rows, std::int64_t width) {
  forward({hidden, y, rows, width});
}

void swiglu_backward(const float* hidden, const float* grad, float* grad_hidden, std::int64_t rows,
                     std::int64_t width) {
  backward({hidden, grad, grad_hidden, rows, width});
}

}  // namespace echelon::kernels::cpu
