// Trains a new head on a frozen body, with a dataset that generates samples on demand.
#include <echelon/comm/communicator.h>
#include <echelon/nn/module_layer.h>
#include <echelon/train/trainer.h>
#include <torch/torch.h>

#include <cstdio>

// Your own dataset: sample i must be the same at all times and on all ranks.
class Rings : public echelon::Dataset {
 public:
  std::int64_t size() const override { return 4096; }
  echelon::Batch get(std::span<const std::int64_t> indices) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    echelon::Batch batch{torch::empty({n, 2}), torch::empty({n}, torch::kLong)};
    for (std::int64_t i = 0; i < n; ++i) {
      const auto sample = static_cast<double>(indices[std::size_t(i)]);
      const double ring = indices[std::size_t(i)] % 2 == 0 ? 1 : 2;
      batch.input[i][0] = ring * std::cos(sample * 0.7);
      batch.input[i][1] = ring * std::sin(sample * 0.7);
      batch.target[i] = indices[std::size_t(i)] % 2;
    }
    return batch;
  }
};

int main() {
  const auto ranks = echelon::Communicator::world();
  torch::manual_seed(1);
  torch::nn::Sequential body(torch::nn::Linear(2, 128), torch::nn::Tanh());
  torch::nn::Sequential head(torch::nn::BatchNorm1d(128), torch::nn::Linear(128, 2));
  // Freeze before the layer is made: no gradient, no optimiser state, no weight decay.
  for (torch::Tensor& parameter : body->parameters()) parameter.set_requires_grad(false);
  const torch::Tensor before = body->parameters()[0].clone();

  echelon::Stack model;
  model.add(echelon::module_layer("body", body))
      .add(echelon::module_layer("head", head))
      .add(echelon::loss_layer([](const auto& scores, const auto& target) {
        return torch::cross_entropy_loss(scores, target);
      }));
  const Rings rings;
  echelon::Trainer trainer(model, rings,
                           {.train = {.steps = 200, .batch = 64},
                            .optim = {.rate = 0.01, .warmup = 10},
                            .parallel = {.zero = ranks->size() > 1 ? 3 : 0}},
                           ranks);
  trainer.run();
  trainer.gather();

  // Buffers (here the running statistics) belong to the model: all ranks get rank 0's, and save()
  // and save_weights() write them.
  const double deviation = (head->named_buffers()["0.running_var"] - 1).abs().max().item<double>();
  const bool frozen = torch::equal(body->parameters()[0], before);
  const echelon::Batch some = rings.get(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  const torch::Tensor right = trainer.infer(some.input).argmax(1).eq(some.target);
  if (ranks->rank() == 0)
    std::printf("%lld of 8 right, the body %s, running_var moved by %.2f\n",
                static_cast<long long>(right.sum().item<std::int64_t>()),
                frozen ? "as it was" : "changed", deviation);
  return frozen && deviation > 0.1 && right.all().item<bool>() ? 0 : 1;
}
