// The cross-entropy of a few logits for each sample, [samples, classes], against labels, [samples].
// The loss is the mean over the samples; see vocabulary_loss.h for labels of -100.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

struct Pass;

struct ClassLoss {
  at::Tensor loss;  // a scalar (double)
  at::Tensor grad;  // of the logits, with the pass's weight and scale; only if the pass trains
};

// Throws InvalidArgument for a label that is no class. On a GPU the check would have to wait for
// the device.
ClassLoss class_loss(const at::Tensor& logits, const Pass& pass);

}  // namespace echelon
