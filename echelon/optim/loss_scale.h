// Dynamic loss scaling for fp16 (Micikevicius et al., "Mixed precision training", 2018). The
// gradient of the loss is multiplied by a scale, so that small gradients stay above the smallest
// fp16 number, and the update divides by it. If the gradients of a step are not finite, the step is
// skipped and the scale is halved. After `growth` good steps in a row the scale doubles.
//
// Everything is a scalar on the device: no step waits for the host, and a captured graph reads the
// current scale. All ranks see the same gradients or the same norm, so all have the same scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace echelon {

class LossScale {
 public:
  struct Setup {
    double first = 65536;
    std::int64_t growth = 2000;  // good steps in a row before it doubles
  };
  LossScale(const Setup& setup, at::Device device);

  // The scale of the current step, a float. The tensor's address never changes.
  const at::Tensor& scale() const { return scale_; }

  // Ends a step. `overflow`: its gradients are not finite. `hold`: change nothing. Returns whether
  // the scale is exhausted: the gradients overflowed, and halving would bring the scale below 1.
  // The scale then stays as it is, because it is not the cause. All are boolean scalars on the
  // device.
  at::Tensor advance(const at::Tensor& overflow, const at::Tensor& hold);

  // The state that a resumed run continues from. Reading it waits for the device.
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;  // since the last change
  };
  State state() const;
  void restore(const State& state);

 private:
  std::int64_t growth_;
  at::Tensor scale_, good_;
};

}  // namespace echelon
