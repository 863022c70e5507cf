#include "mixer.h"

#include <echelon/nn/gelu.h>
#include <echelon/nn/layer.h>
#include <echelon/nn/layer_norm.h>
#include <echelon/nn/linear.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "patterns/train.h"

namespace {

using at::Tensor;
using echelon::Declaration;
using echelon::Pass;

Tensor rows(const Tensor& x) { return x.view({-1, x.size(-1)}); }

// Outputs are about as large as inputs.
double stddev(std::int64_t in) { return 1 / std::sqrt(static_cast<double>(in)); }

// [images, 1, side, side] -> [images, patches, channels]
class PatchEmbedding : public echelon::Layer {
 public:
  explicit PatchEmbedding(const MixerOptions& options) : options_(options) {}

  void declare(Declaration& declaration) override {
    const auto pixels = options_.patch * options_.patch;
    embed_.declare(declaration, "embedding", pixels, options_.channels, stddev(pixels));
  }

  Tensor forward(const Tensor& images, Pass& pass) override {
    const auto across = options_.side / options_.patch, p = options_.patch;
    const Tensor patches =
        images.view({-1, across, p, across, p}).transpose(2, 3).reshape({-1, p * p});
    if (pass.keeps()) pass.saved = {patches};
    return embed_.forward(patches).view({images.size(0), across * across, options_.channels});
  }

  Tensor backward(const Tensor& grad_output, Pass& pass) override {
    embed_.backward(rows(grad_output), pass.saved[0], pass);
    return {};  // images have no gradient
  }

 private:
  MixerOptions options_;
  echelon::Linear embed_;
};

// x + mlp(norm(x)), where the mlp sees the channels of one patch, or one channel of all patches.
class Mixing : public echelon::Layer {
 public:
  enum class Over { patches, channels };

  Mixing(std::string name, Over over, std::int64_t channels, std::int64_t size, std::int64_t hidden)
      : name_(std::move(name)), over_(over), channels_(channels), size_(size), hidden_(hidden) {}

  void declare(Declaration& declaration) override {
    norm_.declare(declaration, name_ + ".norm", channels_);
    expand_.declare(declaration, name_ + ".expand", size_, hidden_, stddev(size_));
    contract_.declare(declaration, name_ + ".contract", hidden_, size_, stddev(hidden_));
  }

  Tensor forward(const Tensor& x, Pass& pass) override {
    const auto normed = norm_.forward(rows(x));
    const Tensor mixed = to_mix(normed.y.view_as(x));
    const Tensor expanded = expand_.forward(mixed);
    const Tensor activated = echelon::tanh_gelu(expanded);
    if (pass.keeps()) pass.saved = {x, normed.mean, normed.rstd, mixed, expanded, activated};
    return back(contract_.forward(activated), x).add_(x);
  }

  Tensor backward(const Tensor& grad_output, Pass& pass) override {
    const auto& [x, mean, rstd, mixed, expanded, activated] = saved_of(pass);
    Tensor grad = contract_.backward(to_mix(grad_output), activated, pass);
    echelon::tanh_gelu_backward_(grad, expanded);
    grad = back(expand_.backward(grad, mixed, pass), x);
    return norm_.backward(rows(grad), rows(x), mean, rstd).view_as(x).add_(grad_output);
  }

 private:
  struct Saved {
    const Tensor &x, &mean, &rstd, &mixed, &expanded, &activated;
  };
  static Saved saved_of(const Pass& pass) {
    const auto& s = pass.saved;
    return {s[0], s[1], s[2], s[3], s[4], s[5]};
  }

  // [images, patches, channels] as rows of the mixed dimension, and back.
  Tensor to_mix(const Tensor& x) const {
    return over_ == Over::channels ? rows(x) : rows(x.transpose(1, 2).contiguous());
  }
  Tensor back(const Tensor& mixed, const Tensor& like) const {
    if (over_ == Over::channels) return mixed.view_as(like);
    return mixed.view({like.size(0), like.size(2), like.size(1)}).transpose(1, 2).contiguous();
  }

  std::string name_;
  Over over_;
  std::int64_t channels_, size_, hidden_;
  echelon::LayerNorm norm_;
  echelon::Linear expand_, contract_;
};

// [images, patches, channels] -> [images, classes]: a score for each class.
class Scores : public echelon::Layer {
 public:
  explicit Scores(const MixerOptions& options) : options_(options) {}

  void declare(Declaration& declaration) override {
    norm_.declare(declaration, "scores.norm", options_.channels);
    score_.declare(declaration, "scores", options_.channels, options_.classes, 0.02);
  }

  Tensor forward(const Tensor& x, Pass& pass) override {
    const auto normed = norm_.forward(rows(x));
    const Tensor pooled = normed.y.view_as(x).mean(1);
    if (pass.keeps()) pass.saved = {x, normed.mean, normed.rstd, pooled};
    return score_.forward(pooled);
  }

  Tensor backward(const Tensor& grad_output, Pass& pass) override {
    const Tensor &x = pass.saved[0], &mean = pass.saved[1], &rstd = pass.saved[2];
    const Tensor grad = score_.backward(grad_output, pass.saved[3], pass).div_(x.size(1));
    const Tensor everywhere = grad.unsqueeze(1).expand_as(x).contiguous();
    return norm_.backward(rows(everywhere), rows(x), mean, rstd).view_as(x);
  }

 private:
  MixerOptions options_;
  echelon::LayerNorm norm_;
  echelon::Linear score_;
};

}  // namespace

echelon::Stack mixer(const MixerOptions& options) {
  const auto across = options.side / options.patch, patches = across * across;
  echelon::Stack stack;
  stack.add(std::make_unique<PatchEmbedding>(options));
  for (std::int64_t i = 0; i < options.depth; ++i) {
    const std::string name = "mixing." + std::to_string(i);
    stack.add(std::make_unique<Mixing>(name + ".patches", Mixing::Over::patches, options.channels,
                                       patches, options.patches_hidden));
    stack.add(std::make_unique<Mixing>(name + ".channels", Mixing::Over::channels, options.channels,
                                       options.channels, options.channels_hidden));
  }
  stack.add(std::make_unique<Scores>(options)).add(classification());
  return stack;
}
