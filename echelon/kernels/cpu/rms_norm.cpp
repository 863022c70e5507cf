// Two passes over a row: its sum of squares, then its values. Backward, with n = x rstd and g the
// gradient of y: first the mean of g w n, then grad_x = rstd (g w - n mean) and grad_w += g n.
#include "echelon/kernels/cpu/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "echelon/kernels/cpu/lanes.h"

namespace echelon::kernels::cpu {
namespace {

template <class L>
ECHELON_INLINE float sum_of(Floats<L> lanes) {
  float sum = 0;
  for (int lane = 0; lane < L::width; ++lane) sum += lanes[lane];
  return sum;
}

struct Forward {
  RmsRows of;
  float epsilon;
  float *y, *rstd;
};
template <class L>
ECHELON_INLINE void forward_kernel(const Forward& a) {
  const std::int64_t width = a.of.width, whole = width / L::width * L::width, rest = width - whole;
  for (std::int64_t row = 0; row < a.of.rows; ++row) {
    const float* const x = a.of.x + row * width;
    float* const y = a.y + row * width;
    Floats<L> squares{};
    for (std::int64_t i = 0; i < whole; i += L::width) {
      const Floats<L> value = load<L>(x + i);
      squares += value * value;
    }
    const Floats<L> last = load<L>(x + whole, rest);
    squares += last * last;
    const float rstd = 1 / std::sqrt(sum_of<L>(squares) / static_cast<float>(width) + a.epsilon);
    a.rstd[row] = rstd;
    for (std::int64_t i = 0; i < whole; i += L::width)
      store<L>(y + i, load<L>(x + i) * rstd * load<L>(a.of.weight + i));
    if (rest > 0) store<L>(y + whole, last * rstd * load<L>(a.of.weight + whole, rest), rest);
  }
}
ECHELON_LANES_FUNCTION(forward, Forward, forward_kernel)

struct Backward {
  RmsRows of;
  const float *rstd, *grad;
  float *grad_x, *grad_weight;
};
template <class L>
ECHELON_INLINE void backward_kernel(const Backward& a) {
  const std::int64_t width = a.of.width, whole = width / L::width * L::width, rest = width - whole;
  const float* const weight = a.of.weight;
  std::fill(a.grad_weight, a.grad_weight + width, 0.0f);
  for (std::int64_t row = 0; row < a.of.rows; ++row) {
    const float* const x = a.of.x + row * width;
    const float* const grad = a.grad + row * width;
    float* const grad_x = a.grad_x + row * width;
    const float rstd = a.rstd[row];
    Floats<L> products{};
    for (std::int64_t i = 0; i < whole; i += L::width)
      products += load<L>(grad + i) * load<L>(weight + i) * load<L>(x + i);
    products +=
        load<L>(grad + whole, rest) * load<L>(weight + whole, rest) * load<L>(x + whole, rest);
    const float mean = sum_of<L>(products) * rstd / static_cast<float>(width);
    for (std::int64_t i = 0; i < whole; i += L::width) {
      const Floats<L> normed = load<L>(x + i) * rstd, g = load<L>(grad + i);
      store<L>(grad_x + i, (g * load<L>(weight + i) - normed * mean) * rstd);
      store<L>(a.grad_weight + i, load<L>(a.grad_weight + i) + g * normed);
    }
    if (rest > 0) {
      const Floats<L> normed = load<L>(x + whole, rest) * rstd, g = load<L>(grad + whole, rest);
      store<L>(grad_x + whole, (g * load<L>(weight + whole, rest) - normed * mean) * rstd, rest);
      store<L>(a.grad_weight + whole, load<L>(a.grad_weight + whole, rest) + g * normed, rest);
    }
  }
}
ECHELON_LANES_FUNCTION(backward, Backward, backward_kernel)

}  // namespace

void rms_norm(const RmsRows& of, float epsilon, float* y, float* rstd) {
  forward({of, epsilon, y, rstd});
}

void rms_norm_backward(const RmsRows& of, const float* rstd, const float* grad, float* grad_x,
                       float* grad_weight) {
  backward({of, rstd, grad, grad_x, grad_weight});
}

}  // namespace echelon::kernels::cpu
