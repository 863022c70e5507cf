// Your own loop around the trainer: it validates, keeps the best state and stops early.
#include <echelon/comm/communicator.h>
#include <echelon/nn/module_layer.h>
#include <echelon/train/trainer.h>
#include <torch/torch.h>

#include <cstdio>
#include <limits>

int main() {
  const auto ranks = echelon::Communicator::world();
  torch::manual_seed(1);
  const torch::Tensor x = torch::rand({96, 1}), noise = 0.3 * torch::randn({96, 1});
  const torch::Tensor y = torch::sin(6 * x) + noise;
  const echelon::TensorDataset few(x.narrow(0, 0, 32), y.narrow(0, 0, 32)),
      unseen(x.narrow(0, 32, 64), y.narrow(0, 32, 64));

  torch::nn::Sequential net(torch::nn::Linear(1, 256), torch::nn::Tanh(),
                            torch::nn::Linear(256, 1));
  echelon::Stack model;
  model.add(echelon::module_layer("net", net))
      .add(echelon::loss_layer(
          [](const auto& output, const auto& target) { return torch::mse_loss(output, target); }));
  echelon::Trainer trainer(model, few,
                           {.train = {.steps = 5000, .batch = 32},
                            .optim = {.rate = 0.02, .schedule = echelon::RateSchedule::constant}},
                           ranks);

  double best = std::numeric_limits<double>::infinity();
  int since_best = 0;
  while (trainer.step() < 5000 && since_best < 5) {
    trainer.run_until(trainer.step() + 50);
    const double loss = trainer.evaluate(unseen, unseen.size());  // the same on every rank
    since_best = loss < best ? 0 : since_best + 1;
    if (loss >= best) continue;
    best = loss;
    trainer.save("best.safetensors");
  }
  const auto stopped = static_cast<long long>(trainer.step());
  ranks->barrier().wait();  // rank 0 has written the file
  trainer.restore("best.safetensors");
  const double restored = trainer.evaluate(unseen, unseen.size());
  if (ranks->rank() == 0)
    std::printf("stopped after step %lld; the best was %.4f after step %lld, restored %.4f\n",
                stopped, best, static_cast<long long>(trainer.step()), restored);
  return stopped < 5000 && restored == best ? 0 : 1;
}
