// Batches of several named tensors, and layers that pass several tensors on: one process equals
// torch's autograd over the same modules, and every layout equals one process. In fp64.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <numeric>
#include <set>

#include "echelon/base/error.h"
#include "echelon/nn/module_layer.h"
#include "echelon/optim/master_update.h"
#include "echelon/step/executor.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/optim/plain_sgd.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

namespace nn = torch::nn;
constexpr std::int64_t width = 6, kinds = 5, samples_in_all = 24;

// (numbers, kind) -> (hidden, context, kind): the kind, an integer, passes through.
struct EncodeImpl : nn::Module {
  nn::Linear numbers = register_module("numbers", nn::Linear(width, width));
  nn::Embedding table = register_module("table", nn::Embedding(kinds, width));
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x,
                                                         const at::Tensor& kind) {
    return {numbers->forward(x).tanh(), table->forward(kind), kind};
  }
};
TORCH_MODULE(Encode);

// (hidden, context, kind) -> (hidden, context), each of which depends on both.
struct MixImpl : nn::Module {
  nn::Linear one = register_module("one", nn::Linear(width, width));
  nn::Embedding scale = register_module("scale", nn::Embedding(kinds, width));
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& y,
                                  const at::Tensor& kind) {
    return {one->forward(x + y) * scale->forward(kind), y * x.sigmoid()};
  }
};
TORCH_MODULE(Mix);

struct JoinImpl : nn::Module {
  nn::Linear left = register_module("left", nn::Linear(width, 3)),
             right = register_module("right", nn::Linear(width, 3));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return left->forward(x) - right->forward(y);
  }
};
TORCH_MODULE(Join);

at::Tensor weighted_loss(const at::Tensor& output, const Batch& batch) {
  return ((output - batch.target).pow(2).sum(1) * batch.at("importance")).mean();
}

struct Model {
  Encode encode;
  Mix mix;
  Join join;
  Stack stack;
  Model() {
    const at::NoGradGuard no_grad;
    double value = 0;
    for (const std::shared_ptr<nn::Module>& module :
         {std::shared_ptr<nn::Module>(encode.ptr()), std::shared_ptr<nn::Module>(mix.ptr()),
          std::shared_ptr<nn::Module>(join.ptr())}) {
      module->to(at::kDouble);
      for (auto& parameter : module->parameters())
        for (std::int64_t i = 0; i < parameter.numel(); ++i)
          parameter.view({-1})[i].fill_(std::sin(value += 1.7) * 0.5);
    }
    stack.reads({"numbers", "kind"})
        .add(module_layer("encode", encode))
        .add(module_layer("mix", mix))
        .add(module_layer("join", join))
        .add(batch_loss_layer([](const Tensors& outputs, const Batch& batch) {
          return weighted_loss(outputs.at(0), batch);
        }));
  }
};

class Samples : public Dataset {
 public:
  Samples() {
    at::manual_seed(3);
    all_ = {{},
            at::randn({samples_in_all, 3}, at::kDouble),
            {{"kind", at::randint(kinds, {samples_in_all}, at::kLong)},
             {"numbers", at::randn({samples_in_all, width}, at::kDouble)},
             {"importance", at::rand({samples_in_all}, at::kDouble)}}};
  }
  std::int64_t size() const override { return samples_in_all; }
  Batch get(std::span<const std::int64_t> indices) const override {
    const at::Tensor rows = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
    return all_.map([&](const at::Tensor& t) { return t.index_select(0, rows); });
  }

 private:
  Batch all_;
};

const Samples& samples() {
  static const Samples data;
  return data;
}

PlanOptions options() {
  PlanOptions job = tiny_options(OptimizerKind::sgd, 1, 2);
  job.train.batch = 8;
  job.optim.clip = 0;
  return job;
}

std::map<std::string, at::Tensor> trained(const ParallelOptions& parallel, Recompute recompute,
                                          std::shared_ptr<Communicator> ranks) {
  Model model;
  model.stack.recompute(recompute);
  const PlanOptions job = options();
  Trainer trainer(model.stack, samples(),
                  TrainerOptions{.train = job.train,
                                 .optim = job.optim,
                                 .parallel = parallel,
                                 .zero = {.group = 0},
                                 .pipeline = {.balance = BalanceBy::count, .stages = {}}},
                  std::move(ranks));
  trainer.run_until(4);
  std::map<std::string, at::Tensor> all;
  for (const auto& p : model.stack.parameters()) all[p.name] = trainer.master(p).clone();
  const std::vector<std::int64_t> some = {5, 0, 7};
  all["output"] = trainer.infer(samples().get(some));
  all["loss"] = at::zeros({}, at::kDouble).fill_(trainer.evaluate_together(samples(), 11));
  return all;
}

TEST(SeveralTensors, GiveTorchsGradients) {
  Model model, plain;
  model.stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  model.stack.load(random_values(1));  // from the modules: each parameter's Init is its value
  const std::vector<std::int64_t> indices = {3, 9, 4, 0, 20};
  const Batch batch = samples().get(indices);
  const StepShape shape = step_shape(model.stack, 2, {});
  MasterUpdate update(model.stack, plain_sgd());
  update.rate().fill_(0);
  Executor executor(model.stack, &update, one_process(shape), shape);
  const double loss = executor.run(batch).item<double>();

  const auto [hidden, context, kind] = plain.encode->forward(batch.at("numbers"), batch.at("kind"));
  const auto mixed = plain.mix->forward(hidden, context, kind);
  const at::Tensor expected = weighted_loss(plain.join->forward(mixed[0], mixed[1]), batch);
  torch::autograd::backward({expected}, {at::ones({}, at::kDouble)});
  EXPECT_NEAR(loss, expected.item<double>(), 1e-12);
  std::map<std::string, at::Tensor> grads;
  for (const auto& item : plain.encode->named_parameters())
    grads["encode." + item.key()] = item.value().grad();
  for (const auto& item : plain.mix->named_parameters())
    grads["mix." + item.key()] = item.value().grad();
  for (const auto& item : plain.join->named_parameters())
    grads["join." + item.key()] = item.value().grad();
  for (const auto& parameter : model.stack.parameters())
    EXPECT_LT((parameter.grad - grads.at(parameter.name)).abs().max().item<double>(), 1e-12)
        << parameter.name;
}

TEST(SeveralTensors, EqualOneProcessInEveryLayout) {
  at::set_num_threads(1);
  const auto expected = trained({}, Recompute::none, nullptr);
  struct Case {
    const char* name;
    ParallelOptions parallel;
    int world;
    Recompute recompute = Recompute::none;
  };
  for (const auto& one :
       {Case{"data", {}, 2}, Case{"zero 2", {.zero = 2}, 2}, Case{"zero 3", {.zero = 3}, 3},
        Case{"pipeline of 2", {.pipeline = 2}, 2}, Case{"pipeline of 4", {.pipeline = 4}, 4},
        Case{"pipeline x zero 3", {.zero = 3, .pipeline = 2, .data = 2}, 4},
        Case{"recompute", {.pipeline = 2}, 2, Recompute::full}}) {
    SCOPED_TRACE(one.name);
    run_ranks_well({.world = one.world}, [&](Group& group) {
      const auto seen =
          trained(one.parallel, one.recompute, native_communicator(group.shared_from_this()));
      for (const auto& [name, value] : expected)
        EXPECT_LT((seen.at(name) - value).abs().max().item<double>(), 1e-12) << name;
    });
  }
}

// Samples of a batch have the length of its longest, as in padded text.
class Ragged : public Dataset {
 public:
  std::int64_t size() const override { return 16; }
  Batch get(std::span<const std::int64_t> indices) const override {
    const auto longest = *std::max_element(indices.begin(), indices.end()) + 1;
    at::Tensor x = at::zeros({std::int64_t(indices.size()), longest, width}, at::kDouble);
    for (std::size_t i = 0; i < indices.size(); ++i)
      x[std::int64_t(i)].narrow(0, 0, indices[i] + 1).fill_(0.1 * double(indices[i]));
    return {x, at::ones({std::int64_t(indices.size()), 1}, at::kDouble)};
  }
};

TEST(SeveralTensors, BatchesMayDifferInSizeFromStepToStep) {
  at::set_num_threads(1);
  const Ragged ragged;
  const auto run = [&](const ParallelOptions& parallel, std::shared_ptr<Communicator> ranks) {
    Stack stack;
    nn::Linear first(width, 4), second(4, 1);
    const at::NoGradGuard no_grad;
    for (auto* linear : {&first, &second})
      for (auto& parameter : (*linear)->parameters()) parameter.fill_(0.2);
    stack.add(module_layer("first", first)).add(module_layer("second", second));
    stack.add(loss_layer([](const at::Tensor& out, const at::Tensor& target) {
      return (out.sum(1) - target).pow(2).mean();
    }));
    PlanOptions job = options();
    job.train.batch = 4;
    Trainer trainer(stack, ragged,
                    TrainerOptions{.train = job.train,
                                   .optim = job.optim,
                                   .parallel = parallel,
                                   .pipeline = {.balance = BalanceBy::count, .stages = {}}},
                    std::move(ranks));
    std::vector<double> losses;
    trainer.on_step([&](const StepReport& report) { losses.push_back(report.loss); });
    trainer.run_until(6);
    return losses;
  };
  const auto expected = run({}, nullptr);
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto seen = run({.pipeline = 2}, native_communicator(group.shared_from_this()));
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(seen[i], expected[i], 1e-10);
  });
}

// Samples of 1 to 4 targets, the rest of which are marked with a negative number.
class Uneven : public Dataset {
 public:
  Uneven() {
    at::manual_seed(5);
    inputs_ = at::randn({20, width}, at::kDouble);
    targets_ = at::rand({20, 4}, at::kDouble);
    for (std::int64_t i = 0; i < 20; ++i)
      targets_[i].narrow(0, targets(i), 4 - targets(i)).fill_(-1);
  }
  std::int64_t size() const override { return 20; }
  std::int64_t targets(std::int64_t i) const override { return 1 + i * 7 % 4; }
  Batch get(std::span<const std::int64_t> indices) const override {
    return TensorDataset(inputs_, targets_).get(indices);
  }

 private:
  at::Tensor inputs_, targets_;
};

at::Tensor mean_over_targets(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor there = target.ge(0);
  return ((output - target).pow(2) * there).sum() / there.sum();
}

TEST(SeveralTensors, ALossIsTheMeanOverTheTargetsOfAllRanksAndMicroBatches) {
  at::set_num_threads(1);
  const Uneven data;
  const auto run = [&](int micro_batches, const ParallelOptions& parallel,
                       std::shared_ptr<Communicator> ranks) {
    nn::Linear linear(width, 4);
    const at::NoGradGuard no_grad;
    linear->to(at::kDouble);
    for (auto& parameter : linear->parameters()) parameter.fill_(0.3);
    Stack stack;
    stack.add(module_layer("linear", linear)).add(loss_layer(mean_over_targets));
    PlanOptions job = options();
    job.train.micro_batches = micro_batches;
    job.train.batch = 10;
    Trainer trainer(stack, data,
                    TrainerOptions{.train = job.train, .optim = job.optim, .parallel = parallel},
                    std::move(ranks));
    std::vector<double> seen;
    trainer.on_step([&](const StepReport& report) {
      seen.push_back(report.loss);
      seen.push_back(double(report.targets));
    });
    trainer.run_until(5);
    seen.push_back(trainer.evaluate_together(data, 20));
    for (const auto& p : stack.parameters()) seen.push_back(trainer.master(p).sum().item<double>());
    return seen;
  };
  const auto expected = run(1, {}, nullptr);
  // Against torch: the loss of the first step, over all its samples at once.
  const auto first = data.get(Sampler(1, 20, 10).indices(0, 0, 10));
  EXPECT_NEAR(
      expected[0],
      mean_over_targets(first.input.sum(1, true).mul(0.3).add(0.3).expand({10, 4}), first.target)
          .item<double>(),
      1e-12);
  EXPECT_EQ(expected[1], first.target.ge(0).sum().item<double>());
  const auto same = [&](const std::vector<double>& seen) {
    ASSERT_EQ(seen.size(), expected.size());
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_NEAR(seen[i], expected[i], 1e-12) << i;
  };
  same(run(3, {}, nullptr));
  for (const int world : {2, 3})
    run_ranks_well({.world = world}, [&](Group& group) {
      same(run(2, {}, native_communicator(group.shared_from_this())));
      same(run(1, {.zero = 3}, native_communicator(group.shared_from_this())));
    });
  run_ranks_well({.world = 2}, [&](Group& group) {
    same(run(3, {.pipeline = 2}, native_communicator(group.shared_from_this())));
  });
}

// A probe divides a part's gradient by its weight, and gets that of the part's mean loss.
TEST(SeveralTensors, ARanksWeightIsItsShareOfTheTargets) {
  at::set_num_threads(1);
  const Uneven data;
  const Sampler sampler(1, 20, 10);
  run_ranks_well({.world = 2}, [&](Group& group) {
    nn::Linear linear(width, 4);
    linear->to(at::kDouble);
    Stack stack;
    stack.add(module_layer("linear", linear)).add(loss_layer(mean_over_targets));
    PlanOptions job = options();
    job.train.batch = 10;
    Trainer trainer(stack, data, TrainerOptions{.train = job.train, .optim = job.optim},
                    native_communicator(group.shared_from_this()));
    std::set<double> weights;
    trainer.probe({.before_reduce = [&](const at::Tensor&, double w) { weights.insert(w); },
                   .before_update = {}});
    const auto targets = [&](std::int64_t begin, std::int64_t end) {
      double sum = 0;
      for (const auto i : sampler.indices(0, begin, end)) sum += double(data.targets(i));
      return sum;
    };
    trainer.run_until(1);
    const std::int64_t begin = 5 * group.rank();
    EXPECT_EQ(weights, std::set{targets(begin, begin + 5) / targets(0, 10)});
  });
}

TEST(SeveralTensors, ASampleWithoutATargetIsRefused) {
  struct Gap : Uneven {
    std::int64_t targets(std::int64_t i) const override { return i == 13 ? 0 : Uneven::targets(i); }
  };
  const Gap data;
  nn::Linear linear(width, 4);
  linear->to(at::kDouble);
  Stack stack;
  stack.add(module_layer("linear", linear)).add(loss_layer(mean_over_targets));
  PlanOptions job = options();
  job.train.batch = 20;
  Trainer trainer(stack, data, TrainerOptions{.train = job.train, .optim = job.optim});
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { trainer.run_until(1); }),
      "sample 13 of the dataset has 0 targets and others have some: leave out samples without "
      "a target");
}

TEST(SeveralTensors, MismatchesAreNamed) {
  Model model;
  model.stack.allocate(at::kCPU, at::kDouble, Gradients::no);
  model.stack.load(random_values(1));
  const std::vector<std::int64_t> indices = {1, 2};
  Batch batch = samples().get(indices);
  batch.more.erase(batch.more.begin());
  EXPECT_EQ(thrown<InvalidArgument>([&] { model.stack.infer(batch); }),
            "the batch has no tensor named 'kind': the dataset gives target, numbers, importance");
  Stack one;
  one.reads({"numbers"}).add(module_layer("encode", model.encode));
  one.allocate(at::kCPU, at::kDouble, Gradients::no);
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { one.infer(batch); }),
      "the module of layer 'encode' takes 2 tensors and gets 1: see Stack::reads and what the "
      "layer below returns");
  batch.more[0].second = batch.more[0].second.narrow(0, 0, 1);
  EXPECT_EQ(thrown<InvalidArgument>([&] { batch.check(); }),
            "the batch's 'numbers' is [1, 6], and its 'target' has 2 samples: the first dimension "
            "must be the samples in both");
}

}  // namespace
}  // namespace echelon
