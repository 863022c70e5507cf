// An optimiser, a schedule and a metric of your own. Options are KEY=VALUE.
#include <echelon/base/error.h>
#include <echelon/comm/communicator.h>
#include <echelon/nn/module_layer.h>
#include <echelon/optim/optimizer.h>
#include <echelon/train/trainer.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

// AdaGrad (Duchi, Hazan and Singer, 2011), per element:
//   s += g^2,  w -= rate * (g / (sqrt(s) + epsilon) + decay w)
class AdaGrad : public echelon::Optimizer {
 public:
  std::vector<std::string> state_names() const override { return {"squares"}; }

  void update(const std::vector<echelon::Slice>& slices,
              const echelon::StepScalars& scalars) const override {
    for (const auto& slice : slices) {
      // Zero where the step is skipped, so that the state stays as it is.
      const torch::Tensor grad = echelon::usable_gradient(slice, scalars);
      torch::Tensor value = slice.value, squares = slice.state[0];
      squares.addcmul_(grad, grad);
      const torch::Tensor step = grad / (squares.sqrt() + 1e-10) + slice.decay * value;
      value.sub_(step * echelon::rate_of(scalars, slice.rate) * (1 - scalars.skip));
    }
  }
};

// The mean distance between output and target. Counts are sums, so ranks can share the samples.
class Distance : public echelon::Metric {
 public:
  torch::Tensor none() const override { return torch::zeros({2}, torch::kDouble); }
  void add(torch::Tensor counts, const torch::Tensor& output,
           const torch::Tensor& target) const override {
    counts[0] += (output - target).abs().sum().cpu();
    counts[1] += target.numel();
  }
  echelon::Scores scores(const torch::Tensor& counts) const override {
    return {{"distance", (counts[0] / counts[1]).item<double>()}};
  }
  bool more_is_better(std::string_view /*score*/) const override { return false; }
};

int main(int argc, char** argv) try {
  echelon::TrainerOptions options{.train = {.steps = 300, .batch = 64}, .optim = {.rate = 0.1}};
  options.optim.custom = std::make_shared<AdaGrad>();
  // The share of optim.rate at a step: a warm-up of 20 steps, then as one over the root.
  options.optim.custom_schedule = [](std::int64_t step, std::int64_t /*steps*/) {
    const double done = static_cast<double>(step + 1) / 20;
    return std::min(done, 1 / std::sqrt(done));
  };
  // Weight decay and rates by name apply to an optimiser of your own as well.
  options.optim.groups = {"*.bias: decay=0", "net.2.*: rate=0.5"};
  for (int i = 1; i < argc; ++i) echelon::set_option(echelon::fields_of(options), argv[i]);

  const auto ranks = echelon::Communicator::world();
  torch::manual_seed(1);
  const torch::Tensor x = 6 * torch::rand({2048, 1}) - 3;
  const echelon::TensorDataset data(x, torch::sin(x));
  const auto trained = [&](std::int64_t from, std::int64_t until) {
    torch::manual_seed(2);
    torch::nn::Sequential net(torch::nn::Linear(1, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
    echelon::Stack model;
    model.add(echelon::module_layer("net", net))
        .add(echelon::loss_layer([](const auto& output, const auto& target) {
          return torch::mse_loss(output, target);
        }));
    echelon::Trainer trainer(model, data, options, ranks);
    trainer.add_metric(std::make_shared<Distance>());
    if (from > 0) trainer.restore("custom.safetensors");
    trainer.run_until(until);
    if (from == 0) trainer.save("custom.safetensors");  // with the state "squares"
    return trainer.measure(data, data.size());
  };
  trained(0, 150);
  ranks->barrier().wait();  // rank 0 has written the state
  const auto resumed = trained(150, 300), whole = trained(0, 300);
  const double distance = *echelon::find_score(whole.scores, "distance");
  if (ranks->rank() == 0)
    std::printf("loss %.5f, distance %.3f; with a break %.5f\n", whole.loss, distance,
                resumed.loss);
  return distance < 0.1 && resumed.loss == whole.loss ? 0 : 1;
} catch (const echelon::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
