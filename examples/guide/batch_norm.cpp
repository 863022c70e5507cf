// A network whose batch norm sees the whole batch, whichever ranks have its parts. Prints the same
// on one rank and on many.
#include <echelon/comm/communicator.h>
#include <echelon/nn/module_layer.h>
#include <echelon/nn/sync_batch_norm.h>
#include <echelon/train/trainer.h>
#include <torch/torch.h>

#include <cstdio>

struct NetImpl : torch::nn::Module {
  // No bias: the norm takes it out again, and Adam would make steps of what rounding leaves of its
  // gradient.
  torch::nn::Conv2d patches{register_module(
      "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).stride(3).bias(false)))};
  echelon::SyncBatchNorm norm{register_module("norm", echelon::SyncBatchNorm(8))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(8 * 4 * 4, 2))};

  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::silu(norm(patches(x))).flatten(1));
  }
};
TORCH_MODULE(Net);

int main() {
  const auto ranks = echelon::Communicator::world();
  torch::manual_seed(1);
  // Images with a gradient from left to right, or from top to bottom; each with its own brightness.
  const torch::Tensor kind = torch::arange(512) % 2, ramp = torch::linspace(-1, 1, 12);
  const torch::Tensor across = ramp.view({1, 12}).expand({12, 12}), down = across.t();
  const torch::Tensor x = torch::where(kind.view({-1, 1, 1, 1}) == 0, across, down) +
                          3 * torch::randn({512, 1, 1, 1}) + 0.3 * torch::randn({512, 1, 12, 12});
  const echelon::TensorDataset images(x, kind);

  Net net;
  echelon::Stack model;
  model.add(echelon::module_layer("net", net))
      .add(echelon::loss_layer([](const auto& scores, const auto& target) {
        return torch::cross_entropy_loss(scores, target);
      }));
  echelon::Trainer trainer(
      model, images, {.train = {.steps = 100, .batch = 20}, .optim = {.rate = 0.01, .warmup = 10}},
      ranks);
  trainer.run();
  const double loss = trainer.evaluate(images, images.size());
  trainer.gather();
  if (ranks->rank() == 0)
    std::printf("loss %.4f, running mean %.4f, running variance %.4f\n", loss,
                net->norm->running_mean.mean().item<double>(),
                net->norm->running_var.mean().item<double>());
  return loss < 0.2 ? 0 : 1;
}
