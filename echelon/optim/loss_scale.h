// Dynamic loss scaling for fp16 (Micikevicius et al., "Mixed precision training", 2018). The
// gradient of the loss is multiplied by a scale, so that small gradients stay above the smallest
// number that fp16 has, and the update divides by it. Where the gradients of a step are not finite,
// that step is skipped and the scale halved; after `growth` good steps in a row it doubles.
//
// Everything is a scalar on the device: no step waits for the host, and a recorded graph reads the
// present scale. All ranks see the same gradients or the same norm, so all have the same scale.
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

  // Of the step that runs, float. Its place never changes.
  const at::Tensor& scale() const { return scale_; }

  // The step is over. `overflow`: its gradients are not finite; `hold`: nothing is to change. Gives
  // whether the scale is exhausted, and stays as it is: an overflow at a scale that would fall
  // below 1, which means that not the scale is at fault. All are boolean scalars on the device.
  at::Tensor advance(const at::Tensor& overflow, const at::Tensor& hold);

  // What a resumed run goes on with; waits for the device.
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
