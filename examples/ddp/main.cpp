// Your own network and optimiser on several ranks, each with its part of every batch.
#include <echelon/comm/communicator.h>
#include <echelon/parallel/data/data_parallel.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const auto ranks = echelon::Communicator::world();
  torch::manual_seed(1);  // the same samples on every rank
  const torch::Tensor x = 6 * torch::rand({2048, 1}) - 3;
  const torch::Tensor y = torch::sin(x) + 0.1 * torch::randn_like(x);

  torch::nn::Sequential net(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  echelon::DataParallel parallel(*net, ranks);
  torch::optim::Adam optimizer(net->parameters(), 0.01);

  const std::int64_t batch = 64, share = batch / ranks->size();
  double loss_now = 0;
  for (std::int64_t step = 0; step < 1000; ++step) {
    const std::int64_t mine = step * batch % x.size(0) + ranks->rank() * share;
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::mse_loss(net->forward(x.narrow(0, mine, share)), y.narrow(0, mine, share));
    loss.backward();
    parallel.wait();  // gradients are the mean over the ranks
    optimizer.step();
    loss_now = loss.item<double>();
    if (ranks->rank() == 0 && step % 100 == 0)
      std::cout << "step " << step << "\tloss " << loss_now << "\n";
  }
  if (ranks->rank() == 0)
    std::cout << "sin(1) = 0.841\tlearnt " << net->forward(torch::ones({1, 1})).item<double>()
              << "\n";
  return loss_now < 0.05 ? 0 : 1;
}
