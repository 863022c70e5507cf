#include "resnet.h"

#include <ATen/ops/silu.h>
#include <echelon/nn/module_layer.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>

#include "patterns/train.h"

namespace {

namespace nn = torch::nn;
using at::Tensor;

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct StemImpl : nn::Module {
  StemImpl(std::int64_t out, std::int64_t groups)
      : conv_(register_module("conv", conv(1, out, 3, 1))),
        norm_(register_module("norm", nn::GroupNorm(groups, out))) {}

  Tensor forward(const Tensor& x) { return at::silu(norm_(conv_(x))); }

  nn::Conv2d conv_;
  nn::GroupNorm norm_;
};
TORCH_MODULE(Stem);

// silu(x + f(x)), where f is two convolutions. If f adds channels, x is resized to match.
struct ResidualImpl : nn::Module {
  ResidualImpl(std::int64_t in, std::int64_t out, std::int64_t groups)
      : conv1_(register_module("conv1", conv(in, out, 3, in == out ? 1 : 2))),
        conv2_(register_module("conv2", conv(out, out, 3, 1))),
        norm1_(register_module("norm1", nn::GroupNorm(groups, out))),
        norm2_(register_module("norm2", nn::GroupNorm(groups, out))) {
    if (in != out) resize_ = register_module("resize", conv(in, out, 1, 2));
  }

  Tensor forward(const Tensor& x) {
    const Tensor y = norm2_(conv2_(at::silu(norm1_(conv1_(x)))));
    return at::silu(y + (resize_ ? resize_(x) : x));
  }

  nn::Conv2d conv1_, conv2_, resize_{nullptr};
  nn::GroupNorm norm1_, norm2_;
};
TORCH_MODULE(Residual);

// One score per class, from the mean over the pixels.
struct ScoresImpl : nn::Module {
  ScoresImpl(std::int64_t channels, std::int64_t classes)
      : linear_(register_module("linear", nn::Linear(channels, classes))) {}

  Tensor forward(const Tensor& x) { return linear_(x.mean({2, 3})); }

  nn::Linear linear_;
};
TORCH_MODULE(Scores);

}  // namespace

echelon::Stack resnet(const ResNetOptions& options) {
  using echelon::module_layer;
  echelon::Stack stack;
  auto channels = options.channels;
  stack.add(module_layer("stem", Stem(channels, options.groups)));
  for (std::int64_t stage = 0; stage < options.stages; ++stage) {
    const auto in = channels;
    if (stage > 0) channels *= 2;
    const std::string name = "stage" + std::to_string(stage);
    stack.add(module_layer(name + ".0", Residual(in, channels, options.groups)))
        .add(module_layer(name + ".1", Residual(channels, channels, options.groups)));
  }
  stack.add(module_layer("scores", Scores(channels, options.classes))).add(classification());
  return stack;
}
