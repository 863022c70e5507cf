// Learns a noisy sine with your own network, tensors and loss.
#include <echelon/nn/module_layer.h>
#include <echelon/train/trainer.h>
#include <torch/torch.h>

#include <iostream>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(1, 32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};

  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))); }
};
TORCH_MODULE(Net);

torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

int main() {
  torch::manual_seed(1);
  const torch::Tensor x = 6 * torch::rand({2000, 1}) - 3;
  const torch::Tensor y = torch::sin(x) + 0.1 * torch::randn_like(x);
  const echelon::TensorDataset data(x, y);

  Net net;
  echelon::Stack model;
  model.add(echelon::module_layer("net", net)).add(echelon::loss_layer(loss));

  echelon::Trainer trainer(
      model, data, {.train = {.steps = 1000, .batch = 50}, .optim = {.rate = 0.01, .warmup = 20}});
  trainer.on_step([](const echelon::StepReport& report) {
    if (report.step % 100 != 1) return;
    std::cout << "step " << report.step << "\tloss " << report.loss << "\n";
  });
  trainer.run();
  trainer.gather();  // now `net` holds the trained parameters, even if ranks shard the model
  const double final_loss = trainer.evaluate(data, data.size());
  std::cout << "over all samples\tloss " << final_loss << " (the noise alone gives 0.01)\n"
            << "sin(1) = 0.841\tlearnt " << net(torch::ones({1, 1})).item<double>() << "\n";
  return final_loss < 0.02 ? 0 : 1;
}
