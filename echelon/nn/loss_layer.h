// A user's function as the loss, the last layer of a stack. Autograd runs only inside it.
//
//   stack.add(loss_layer([](const at::Tensor& out, const at::Tensor& target) {
//     return torch::mse_loss(out, target);
//   }));
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "echelon/nn/layer.h"

namespace echelon {

// `loss(output, target)` must return the mean over the samples as a scalar, or over their targets
// if samples have different numbers of them (Dataset::targets). In fp16 models it
// receives both in fp32, because squares and sums soon leave the range of fp16.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
std::unique_ptr<Layer> loss_layer(LossFunction loss);

// The same for a model with several outputs, or a loss that reads more of the batch than its
// target: a weight for each sample, say. Metrics get the first output and the target.
using BatchLossFunction = std::function<at::Tensor(const Tensors& outputs, const Batch& batch)>;
std::unique_ptr<Layer> batch_loss_layer(BatchLossFunction loss);

}  // namespace echelon
