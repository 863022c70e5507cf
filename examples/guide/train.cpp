// Trains your own network on one rank or several, and uses it. Options are KEY=VALUE.
#include <echelon/base/error.h>
#include <echelon/comm/communicator.h>
#include <echelon/nn/module_layer.h>
#include <echelon/train/trainer.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

struct BodyImpl : torch::nn::Module {
  torch::nn::Linear lift{register_module("lift", torch::nn::Linear(1, 64))};
  torch::nn::Linear mix{register_module("mix", torch::nn::Linear(64, 64))};

  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(mix(torch::tanh(lift(x)))); }
};
TORCH_MODULE(Body);

int main(int argc, char** argv) try {
  echelon::TrainerOptions options{.train = {.steps = 400, .batch = 64},
                                  .optim = {.rate = 0.01, .warmup = 20}};
  for (int i = 1; i < argc; ++i) echelon::set_option(echelon::fields_of(options), argv[i]);

  const auto ranks = echelon::Communicator::world();
  const bool first = ranks->rank() == 0;
  torch::manual_seed(1);  // the same samples and initial values on every rank
  const torch::Tensor x = 6 * torch::rand({2048, 1}) - 3;
  const echelon::TensorDataset data(x, torch::sin(x) + 0.1 * torch::randn_like(x));

  // A pipeline cuts between layers: give it several.
  Body body;
  torch::nn::Linear head(64, 1);
  echelon::Stack model;
  model.add(echelon::module_layer("body", body))
      .add(echelon::module_layer("head", head))
      .add(echelon::loss_layer(
          [](const auto& output, const auto& target) { return torch::mse_loss(output, target); }));

  echelon::Trainer trainer(model, data, options, ranks);
  trainer.on_step([&](const echelon::StepReport& report) {
    if (first && report.step % 100 == 0)
      std::printf("step %lld  loss %.4f\n", static_cast<long long>(report.step), report.loss);
  });

  trainer.on_event([](const echelon::Event& event) {
    if (const auto* saved = std::get_if<echelon::SaveReport>(&event))  // on the rank that wrote it
      std::printf("step %lld  saved %s\n", static_cast<long long>(saved->step),
                  saved->path.c_str());
  });

  // A restored run gives the same bits in the same layout, and agrees to rounding in any other.
  if (std::filesystem::exists("state.safetensors")) trainer.restore("state.safetensors");
  trainer.run_until(options.train.steps / 2);
  trainer.save("state.safetensors");
  trainer.run();

  // Every rank makes these calls, whatever the layout.
  const double loss = trainer.evaluate(data, data.size());
  const torch::Tensor y = trainer.infer(torch::ones({1, 1}));
  trainer.save_weights("net.safetensors");  // body.lift.weight, ..., head.bias: Python reads it too
  trainer.gather();                         // now the modules hold all parameters
  if (first) {
    torch::save(body, "body.pt");
    std::printf("loss %.4f (the noise alone gives 0.01), sin(1) = 0.841, learnt %.3f and %.3f\n",
                loss, y.item<double>(), head(body(torch::ones({1, 1}))).item<double>());
  }
  return loss < 0.02 ? 0 : 1;
} catch (const echelon::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
