// SyncBatchNorm on ranks that are threads, compared with torch's batch norm over the whole batch.
#include "echelon/nn/sync_batch_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "echelon/base/error.h"
#include "echelon/nn/batch_ranks.h"
#include "echelon/parallel/data/data_parallel.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t channels = 5;

std::shared_ptr<BatchRanks> ranks_of(Group& group) {
  return std::make_shared<BatchRanks>(native_communicator(group.shared_from_this()));
}

struct Case {
  std::vector<std::int64_t> more;  // dimensions behind the channels
  std::vector<std::int64_t> parts;
  bool affine = true;
  bool tracks = true;
  std::optional<double> momentum = 0.1;
};

std::string text(const Case& one) {
  return fmt::format("{} more dimensions, parts of {}, affine {}, tracks {}, momentum {}",
                     one.more.size(), fmt::join(one.parts, " and "), one.affine, one.tracks,
                     one.momentum ? fmt::format("{}", *one.momentum) : "none");
}

nn::BatchNormOptions options_of(const Case& one) {
  nn::BatchNormOptions options(channels);
  return options.affine(one.affine).track_running_stats(one.tracks).momentum(one.momentum);
}

// What a norm gives and leaves behind.
struct Seen {
  at::Tensor y, grad_x, grad_weight, grad_bias, mean, variance;
  std::int64_t batches = 0;
};

// Two training batches, so that running statistics are more than one batch's, then an evaluation.
// The gradients are of the sum of y * factor in the second batch.
template <class Norm>
Seen used(Norm& norm, const std::vector<at::Tensor>& batches, const at::Tensor& factor) {
  norm.to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    if (norm.weight.defined()) {
      norm.weight.copy_(at::arange(1, channels + 1, at::kDouble) / 3);
      norm.bias.copy_(at::arange(channels, at::kDouble) - 2);
    }
  }
  norm.train();
  norm.forward(batches[0]);
  const at::Tensor x = batches[1].clone().set_requires_grad(true);
  const at::Tensor y = norm.forward(x);
  torch::autograd::backward({(y * factor).sum()}, {});
  norm.eval();
  Seen seen;
  seen.y = at::cat({y.detach(), norm.forward(batches[2]).detach()});
  seen.grad_x = x.grad();
  if (norm.weight.defined()) {
    seen.grad_weight = norm.weight.grad();
    seen.grad_bias = norm.bias.grad();
  }
  if (norm.running_mean.defined()) {
    seen.mean = norm.running_mean.clone();
    seen.variance = norm.running_var.clone();
    seen.batches = norm.num_batches_tracked.template item<std::int64_t>();
  }
  return seen;
}

struct Whole {
  std::vector<at::Tensor> batches;
  at::Tensor factor;
};

Whole whole_of(const Case& one) {
  at::manual_seed(8);
  std::vector<std::int64_t> shape = {std::accumulate(one.parts.begin(), one.parts.end(), 0l),
                                     channels};
  shape.insert(shape.end(), one.more.begin(), one.more.end());
  Whole all;
  // Far from zero, where sums of squares would lose digits.
  for (int i = 0; i < 3; ++i) all.batches.push_back(at::randn(shape, at::kDouble) * (i + 1) + 100);
  all.factor = at::randn(shape, at::kDouble);
  return all;
}

Seen expected_of(const Case& one, const Whole& whole) {
  if (one.more.empty()) {
    nn::BatchNorm1d norm(options_of(one));
    return used(*norm, whole.batches, whole.factor);
  }
  nn::BatchNorm2d norm(options_of(one));
  return used(*norm, whole.batches, whole.factor);
}

void expect_equal_to_one_process(const Case& one) {
  SCOPED_TRACE(text(one));
  const Whole whole = whole_of(one);
  const Seen expected = expected_of(one, whole);
  const int world = int(one.parts.size());
  std::vector<Seen> seen(one.parts.size());
  run_ranks_well({.world = world}, [&](Group& group) {
    const auto r = std::size_t(group.rank());
    const auto begin = std::accumulate(one.parts.begin(), one.parts.begin() + group.rank(), 0l);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, one.parts[r]); };
    SyncBatchNorm norm(options_of(one));
    const auto ranks = ranks_of(group);
    EXPECT_TRUE(share_batch(*norm, ranks));
    std::vector<at::Tensor> batches;
    for (const auto& batch : whole.batches) batches.push_back(part(batch));
    seen[r] = used(*norm, batches, part(whole.factor));
  });
  at::Tensor grad_weight, grad_bias;
  std::int64_t begin = 0;
  const auto samples = whole.factor.size(0);
  for (std::size_t r = 0; r < seen.size(); ++r) {
    SCOPED_TRACE(r);
    const auto size = one.parts[r];
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, size); };
    // Without running statistics an evaluation norms each rank's samples by themselves.
    EXPECT_TRUE(close(seen[r].y.narrow(0, 0, size), part(expected.y), 1e-12));
    if (one.tracks) {
      EXPECT_TRUE(close(seen[r].y.narrow(0, size, size),
                        expected.y.narrow(0, samples + begin, size), 1e-12));
      EXPECT_TRUE(close(seen[r].mean, expected.mean, 1e-12));
      EXPECT_TRUE(close(seen[r].variance, expected.variance, 1e-12));
      EXPECT_TRUE(close(seen[r].mean, seen[0].mean, 0)) << "the same bits on every rank";
      EXPECT_EQ(seen[r].batches, expected.batches);
    }
    EXPECT_TRUE(close(seen[r].grad_x, part(expected.grad_x), 1e-12));
    begin += size;
    if (!one.affine) continue;
    grad_weight = r == 0 ? seen[r].grad_weight : grad_weight + seen[r].grad_weight;
    grad_bias = r == 0 ? seen[r].grad_bias : grad_bias + seen[r].grad_bias;
  }
  if (!one.affine) return;
  EXPECT_TRUE(close(grad_weight, expected.grad_weight, 1e-12));
  EXPECT_TRUE(close(grad_bias, expected.grad_bias, 1e-12));
}

TEST(SyncBatchNorm, EqualsTorchsOverTheWholeBatch) {
  at::set_num_threads(1);
  for (const auto& more : {std::vector<std::int64_t>{}, std::vector<std::int64_t>{3, 4}}) {
    expect_equal_to_one_process({more, {4, 4}});
    expect_equal_to_one_process({more, {1, 7, 2}});
    expect_equal_to_one_process({more, {3, 2, 2, 1}, false});
    expect_equal_to_one_process({more, {5, 3}, true, true, std::nullopt});
    expect_equal_to_one_process({more, {5, 3}, false, true, std::nullopt});
    expect_equal_to_one_process({more, {2, 6}, true, false});
  }
}

TEST(SyncBatchNorm, OfOneRankIsTorchsToTheBit) {
  const Case one{{2, 2}, {6}};
  const Whole whole = whole_of(one);
  SyncBatchNorm norm(options_of(one));
  const Seen ours = used(*norm, whole.batches, whole.factor), torchs = expected_of(one, whole);
  EXPECT_TRUE(close(ours.y, torchs.y, 0));
  EXPECT_TRUE(close(ours.grad_x, torchs.grad_x, 0));
  EXPECT_TRUE(close(ours.variance, torchs.variance, 0));
}

// Per training forward and backward of C channels on p ranks: a gather of 2 C + 1 doubles of each,
// and a sum of 2 C doubles.
TEST(SyncBatchNorm, SendsWhatItsHeaderSays) {
  at::set_num_threads(1);
  const Case one{{3, 3}, {2, 2, 2}};
  const Whole whole = whole_of(one);
  std::map<std::string, std::uint64_t> bytes;
  std::mutex mutex;
  run_ranks_well({.world = 3, .comm = {.algorithm = Algorithm::ring}}, [&](Group& group) {
    SyncBatchNorm norm(options_of(one));
    const auto ranks = ranks_of(group);
    share_batch(*norm, ranks);
    std::vector<at::Tensor> parts;
    for (const auto& batch : whole.batches) parts.push_back(batch.narrow(0, 2 * group.rank(), 2));
    used(*norm, parts, whole.factor.narrow(0, 2 * group.rank(), 2));
    const std::lock_guard lock(mutex);
    for (const auto& entry : group.ledger().entries()) bytes[entry.tag] += entry.bytes;
  });
  const std::uint64_t p = 3, forwards = 2, backwards = 1;
  EXPECT_EQ(bytes.at("batch norm"), forwards * 8 * (2 * channels + 1) * p * (p - 1) +
                                        backwards * 8 * 4 * channels * (p - 1));
}

struct NetImpl : nn::Module {
  NetImpl() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(norm->forward(first->forward(x)).tanh());
  }
  nn::Linear first{register_module("first", nn::Linear(4, channels))};
  SyncBatchNorm norm{register_module("norm", SyncBatchNorm(channels))};
  nn::Linear last{register_module("last", nn::Linear(channels, 1))};
};
TORCH_MODULE(Net);

TEST(SyncBatchNorm, GivesDataParallelTheGradientsOfOneProcess) {
  at::set_num_threads(1);
  at::manual_seed(6);
  const at::Tensor x = at::randn({12, 4}, at::kDouble), target = at::randn({12, 1}, at::kDouble);
  Net alone;
  const auto loss = [](Net& net, const at::Tensor& from, const at::Tensor& to) {
    return (net->forward(from) - to).square().mean();
  };
  torch::autograd::backward({loss(alone, x, target)}, {});
  std::mutex mutex;
  for (const int world : {2, 3}) {
    run_ranks_well({.world = world}, [&](Group& group) {
      Net net;
      {
        const std::lock_guard lock(mutex);
        const at::NoGradGuard no_grad;
        const auto theirs = alone->named_parameters();
        for (auto& item : net->named_parameters()) item.value().copy_(theirs[item.key()]);
      }
      DataParallel parallel(*net, native_communicator(group.shared_from_this()),
                            {.bucket_mib = 1e-6});
      const auto mine = 12 / world;
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, mine * group.rank(), mine);
      };
      torch::autograd::backward({loss(net, part(x), part(target))}, {});
      parallel.wait();
      for (const auto& item : alone->named_parameters())
        EXPECT_TRUE(close(net->named_parameters()[item.key()].grad(), item.value().grad(), 1e-12))
            << item.key();
      EXPECT_TRUE(close(net->norm->running_var, alone->norm->running_var, 1e-12));
    });
  }
}

// Only rank 0 calls forward in the end: it must not wait.
TEST(SyncBatchNorm, IsAloneAgainAfterDataParallel) {
  run_ranks_well({.world = 2}, [](Group& group) {
    Net net;
    { DataParallel parallel(*net, native_communicator(group.shared_from_this())); }
    if (group.rank() == 0) net->forward(at::ones({3, 4}, at::kDouble));
  });
}

TEST(SyncBatchNorm, RefusesOtherChannels) {
  SyncBatchNorm norm(channels);
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              norm->forward(at::randn({3, 4, 2}));
            }),
            "a SyncBatchNorm of 5 channels takes [samples, 5, …] and gets [3, 4, 2]");
}

TEST(SyncBatchNorm, RefusesABatchOfOneValue) {
  SyncBatchNorm norm(channels);
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              norm->forward(at::randn({1, channels}));
            }),
            "a batch norm in training needs more than one value of each channel: let batches have "
            "more samples");
  norm->eval();
  EXPECT_EQ(norm->forward(at::randn({1, channels})).size(0), 1);
}

TEST(SyncBatchNorm, ALostRankEndsTheWaitOfTheOthers) {
  const auto outcomes = run_outcomes({.world = 2, .comm = {.timeout = 20}}, [](Group& group) {
    if (group.rank() == 1) return;  // never calls it
    SyncBatchNorm norm(channels);
    const auto ranks = ranks_of(group);
    share_batch(*norm, ranks);
    norm->forward(at::randn({3, channels}));
    FAIL() << "rank 0 waited for nobody";
  });
  EXPECT_FALSE(outcomes[0].message.empty());
}

}  // namespace
}  // namespace echelon
