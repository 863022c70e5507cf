// DataParallel on a user's module: ranks are threads, compared with one process in fp64.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <mutex>

#include "echelon/parallel/data/data_parallel.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

constexpr double bound = 1e-12;

struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(5, 12));
    unused = register_module("unused", nn::Linear(3, 3));
    sometimes = register_module("sometimes", nn::Linear(12, 12));
    last = register_module("last", nn::Linear(12, 2));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x, bool all = true) {
    const at::Tensor hidden = first->forward(x).tanh();
    return last->forward(all ? sometimes->forward(hidden).tanh() : hidden);
  }
  nn::Linear first{nullptr}, unused{nullptr}, sometimes{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

// The same initial values in one process and, by rank 0's broadcast, on all ranks.
Net make_net(std::uint64_t seed) {
  static std::mutex mutex;  // torch's generator is global
  const std::lock_guard lock(mutex);
  at::manual_seed(seed);
  return {};
}

struct Samples {
  at::Tensor input, target;
};
const Samples& samples() {
  static const Samples all = [] {
    at::manual_seed(5);
    return Samples{at::randn({24, 5}, at::kDouble), at::randn({24, 2}, at::kDouble)};
  }();
  return all;
}

at::Tensor flat(const Net& net) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : net->parameters())
    all.push_back(parameter.detach().reshape({-1}).clone());
  return at::cat(all);
}

struct Case {
  bool drop_grads = true;  // zero_grad's default
  int pieces = 1;          // micro-batches of accumulation
  double bucket_mib = 0;
};

// Three steps; with ranks, each on its part of the 24 samples.
at::Tensor train(Net net, const Case& one, int rank, int world, DataParallel* parallel) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
  const std::int64_t share = 24 / world, piece = share / one.pieces;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad(one.drop_grads);
    for (int i = 0; i < one.pieces; ++i) {
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, rank * share + i * piece, piece);
      };
      std::optional<DataParallel::Accumulation> quiet;
      if (parallel && i + 1 < one.pieces) quiet.emplace(*parallel);
      at::mse_loss(net->forward(part(samples().input)), part(samples().target))
          .div(one.pieces)
          .backward();
    }
    if (parallel) parallel->wait();
    optimizer.step();
  }
  return flat(net);
}

TEST(DataParallelModule, TrainsLikeOneProcess) {
  at::set_num_threads(1);
  samples();
  for (const bool drop : {true, false})
    for (const int pieces : {1, 2})
      for (const double mib : {0.0, 1e-5}) {
        const Case one{drop, pieces, mib};
        const at::Tensor expected = train(make_net(1), one, 0, 1, nullptr);
        for (int world = 1; world <= 4; ++world) {
          SCOPED_TRACE(
              fmt::format("drop {}, {} pieces, {} MiB, world {}", drop, pieces, mib, world));
          std::vector<at::Tensor> seen(static_cast<std::size_t>(world));
          run_ranks_well({.world = world}, [&](Group& group) {
            Net net = make_net(group.rank() == 0 ? 1 : 99);
            DataParallel parallel(*net, native_communicator(group.shared_from_this()),
                                  {.bucket_mib = mib});
            EXPECT_EQ(parallel.buckets() > 1, mib > 0);
            seen[std::size_t(group.rank())] = train(net, one, group.rank(), world, &parallel);
          });
          for (const auto& parameters : seen) {
            ASSERT_TRUE(parameters.defined());
            EXPECT_LT((parameters - expected).abs().max().item<double>(), bound);
            EXPECT_TRUE(at::equal(parameters, seen[0])) << "not the same bits on all ranks";
          }
        }
      }
}

TEST(DataParallelModule, CountsUnreachedParametersAsZeroOnThatRank) {
  at::set_num_threads(1);
  samples();
  run_ranks_well({.world = 2}, [&](Group& group) {
    Net net = make_net(1), alone = make_net(1);
    DataParallel parallel(*net, native_communicator(group.shared_from_this()), {});
    const at::Tensor input = samples().input.narrow(0, 12 * group.rank(), 12);
    net->forward(input, group.rank() == 0).sum().backward();
    parallel.wait();
    // In one process: half of each, because the mean is over two ranks.
    alone->forward(samples().input.narrow(0, 0, 12), true).sum().div(2).backward();
    alone->forward(samples().input.narrow(0, 12, 12), false).sum().div(2).backward();
    for (const auto& item : net->named_parameters()) {
      const at::Tensor expected = alone->named_parameters()[item.key()].grad();
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      const double difference = expected.defined()
                                    ? (item.value().grad() - expected).abs().max().item<double>()
                                    : item.value().grad().abs().max().item<double>();
      EXPECT_LT(difference, bound) << item.key();
    }
  });
}

TEST(DataParallelModule, RejectsASecondBackwardWhileGradientsAreBeingAveraged) {
  run_ranks_well({.world = 2}, [](Group& group) {
    Net net = make_net(1);
    DataParallel parallel(*net, native_communicator(group.shared_from_this()),
                          {.bucket_mib = 1e-6});
    const at::Tensor input = samples().input.narrow(0, 12 * group.rank(), 12);
    net->forward(input).sum().backward();
    EXPECT_THROW(net->forward(input).sum().backward(), InvalidArgument);
    parallel.wait();
  });
}

TEST(DataParallelModule, BroadcastsBuffers) {
  run_ranks_well({.world = 3}, [](Group& group) {
    nn::BatchNorm1d norm(4);
    norm->running_mean.fill_(group.rank() + 1);
    DataParallel parallel(*norm, native_communicator(group.shared_from_this()), {});
    EXPECT_EQ(norm->running_mean.sum().item<double>(), 4) << "rank 0's";
  });
}

TEST(DataParallelModule, ReleasesTheModule) {
  run_ranks_well({.world = 2}, [](Group& group) {
    Net net = make_net(1);
    { DataParallel parallel(*net, native_communicator(group.shared_from_this()), {}); }
    net->forward(samples().input).sum().backward();  // waits for no one
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

}  // namespace
}  // namespace echelon
