#include "echelon/train/trainer.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/module_layer.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/optim/schedule.h"
#include "echelon/step/device.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

at::Tensor noise(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor out = at::empty(shape);
  fill_normal(key, 0, std::span(out.data_ptr<float>(), static_cast<std::size_t>(out.numel())), 0,
              1);
  return out;
}

// A smooth function of three numbers, to be learnt from 200 samples.
TensorDataset samples() {
  const at::Tensor x = noise({200, 3}, 1);
  return {x, x.select(1, 0).sin().add(x.select(1, 1).mul(x.select(1, 2)).mul(0.3)).unsqueeze(1)};
}

// A user's network with everything that a state must keep: matrices, biases, running statistics, a
// frozen parameter.
struct NetImpl : nn::Module {
  NetImpl() {
    hidden = register_module("hidden", nn::Linear(3, 24));
    norm = register_module("norm", nn::BatchNorm1d(24));
    out = register_module("out", nn::Linear(24, 1));
    gain = register_parameter("gain", at::empty({1}).fill_(1.5), /*requires_grad=*/false);
    at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.key() == "gain" || item.key().starts_with("norm")) continue;
      item.value().copy_(noise(item.value().sizes(), derive_key(1, item.key())).mul(0.3));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return out->forward(norm->forward(hidden->forward(x)).tanh()) * gain;
  }
  nn::Linear hidden{nullptr}, out{nullptr};
  nn::BatchNorm1d norm{nullptr};
  at::Tensor gain;
};
TORCH_MODULE(Net);

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

TrainOptions training(std::int64_t steps, Precision precision = Precision::fp32) {
  TrainOptions train;
  train.steps = steps;
  train.batch = 20;
  train.precision = precision;
  return train;
}

OptimOptions optimizer(OptimizerKind name = OptimizerKind::adamw) {
  OptimOptions optim;
  optim.name = name;
  optim.rate = 0.02;
  optim.warmup = 5;
  optim.schedule = RateSchedule::cosine;
  return optim;
}

// A network in a stack with a trainer, always constructed the same way.
struct Job {
  explicit Job(const TrainOptions& train, const OptimOptions& optim = optimizer(),
               LossFunction loss = mean_square) {
    stack.add(module_layer("net", net)).add(loss_layer(std::move(loss)));
    trainer =
        std::make_unique<Trainer>(stack, data, TrainerOptions{.train = train, .optim = optim});
    trainer->on_step([this](const StepReport& report) { reports.push_back(report); });
  }
  TensorDataset data = samples();
  Net net;
  Stack stack;
  std::vector<StepReport> reports;
  std::unique_ptr<Trainer> trainer;
};

// Everything that must be equal in two equal runs: parameters, masters, buffers.
void expect_same_bits(Job& a, Job& b, const std::string& when) {
  EXPECT_EQ(a.trainer->step(), b.trainer->step()) << when;
  for (const auto& p : a.stack.parameters()) {
    EXPECT_TRUE(at::equal(p.value, b.stack.find(p.name)->value)) << p.name << ", " << when;
    EXPECT_TRUE(at::equal(a.trainer->master(p), b.trainer->master(*b.stack.find(p.name))))
        << "master of " << p.name << ", " << when;
  }
  const auto ours = a.stack.buffers(), theirs = b.stack.buffers();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(at::equal(ours[i].second, theirs[i].second)) << ours[i].first << ", " << when;
}

TEST(Trainer, LearnsASmallRegression) {
  for (const auto name : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    Job run(training(300), optimizer(name));
    const double before = run.trainer->evaluate(run.data, run.data.size());
    run.trainer->run();
    const double after = run.trainer->evaluate(run.data, run.data.size());
    EXPECT_GT(before, 0.3) << name;
    EXPECT_LT(after, 0.15 * before) << name << ", from " << before;
  }
}

TEST(Trainer, TrainsInEveryPrecision) {
  for (const auto precision :
       {Precision::fp64, Precision::fp32, Precision::bf16, Precision::fp16}) {
    Job run(training(200, precision));
    run.trainer->run();
    EXPECT_LT(run.trainer->evaluate(run.data, run.data.size()), 0.08) << precision;
    EXPECT_EQ(run.net->hidden->weight.scalar_type(), run.stack.type());
    const auto masters = run.trainer->master(*run.stack.find("net.hidden.weight")).scalar_type();
    EXPECT_EQ(masters, precision == Precision::fp64 ? at::kDouble : at::kFloat) << precision;
  }
}

TEST(Trainer, ReportsEveryStep) {
  Job run(training(8));
  run.trainer->run();
  ASSERT_EQ(run.reports.size(), 8U);
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto& report = run.reports[static_cast<std::size_t>(i)];
    EXPECT_EQ(report.step, i + 1);
    EXPECT_DOUBLE_EQ(report.rate, rate_at(optimizer(), i, 8)) << "step " << report.step;
    EXPECT_EQ(report.targets, 20);
    EXPECT_GT(report.loss, 0);
    EXPECT_GT(report.grad_norm, 0);
    EXPECT_GE(report.seconds, 0);
  }
}

TEST(Trainer, ReportsTheLossBeforeTheUpdateOnTheSamplersBatch) {
  Job run(training(1, Precision::fp64));
  const Sampler sampler(static_cast<std::uint64_t>(training(1).seed), run.data.size(), 20);
  const Batch batch = run.data.get(sampler.indices(0, 0, 20));
  Net twin;
  twin->to(at::kDouble);
  const at::Tensor loss =
      mean_square(twin->forward(batch.input.to(at::kDouble)), batch.target.to(at::kDouble));
  run.trainer->run();
  EXPECT_NEAR(run.reports[0].loss, loss.item<double>(), 1e-12);
}

TEST(Trainer, GivesTheSameBitsForTheSameSeedAndDifferentBitsForAnother) {
  const auto trained = [](std::int64_t seed) {
    Stack stack = gpt({.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8});
    const RandomTokens data(32, 8, 1);
    TrainOptions train = training(10);
    train.seed = seed;
    Trainer trainer(stack, data, {.train = train, .optim = optimizer()});
    std::vector<double> losses;
    trainer.on_step([&](const StepReport& report) { losses.push_back(report.loss); });
    trainer.run();
    return std::pair(losses, stack.values().clone());
  };
  const auto one = trained(1), again = trained(1), other = trained(2);
  EXPECT_EQ(one.first, again.first);
  EXPECT_TRUE(at::equal(one.second, again.second));
  EXPECT_NE(one.first, other.first);
  EXPECT_FALSE(at::equal(one.second, other.second));
}

TEST(Trainer, ContinuesBitForBitFromASavedState) {
  ScratchFolder folder;
  for (const auto name : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
      const std::string when = fmt::format("{} in {}", name_of(name), name_of(precision));
      Job whole(training(30, precision), optimizer(name)),
          first(training(30, precision), optimizer(name)),
          second(training(30, precision), optimizer(name));
      whole.trainer->run();
      first.trainer->run_until(13);
      first.trainer->save(folder / "state");
      second.trainer->run_until(3);  // what it did before must not matter
      second.trainer->restore(folder / "state");
      expect_same_bits(first, second, when + ", restored");
      second.trainer->run();
      expect_same_bits(whole, second, when + ", at the end");
      EXPECT_EQ(second.reports.back().loss, whole.reports.back().loss) << when;
    }
  }
}

TEST(Trainer, IsNotDisturbedByASaveOrAnEvaluation) {
  ScratchFolder folder;
  Job plain(training(10)), watched(training(10));
  plain.trainer->run();
  for (std::int64_t step = 1; step <= 10; ++step) {
    watched.trainer->run_until(step);
    watched.trainer->evaluate(watched.data, 33);
    watched.trainer->save(folder / "state");
  }
  expect_same_bits(plain, watched, "watched");
}

TEST(Trainer, RejectsAStateThatDoesNotFitAndStaysUnchanged) {
  ScratchFolder folder;
  const auto path = folder / "state";
  const auto refusal = [&](Job& run) {
    return thrown<InvalidArgument>([&] { run.trainer->restore(path); });
  };
  Job run(training(10)), untouched(training(10));

  Job(training(10, Precision::bf16)).trainer->save(path);
  const std::string advice =
      "; set the model, train.freeze, train.precision, optim.name and optim.momentum that it was "
      "saved with";
  EXPECT_EQ(refusal(run), path.string() +
                              " does not fit this job: it has fixed/net.gain as BF16 [1], and the "
                              "job wants F32 [1]" +
                              advice);
  Job(training(10, Precision::fp64)).trainer->save(path);
  EXPECT_EQ(
      refusal(run),
      path.string() +
          " does not fit this job: it has master/net.hidden.weight as F64 [24, 3], and the job "
          "wants F32 [24, 3]" +
          advice);
  Job(training(10), optimizer(OptimizerKind::sgd)).trainer->save(path);
  EXPECT_EQ(
      refusal(run),
      path.string() +
          " does not fit this job: it has no exp_avg/net.hidden.weight, and the job wants F32 "
          "[24, 3]" +
          advice);
  expect_same_bits(run, untouched, "after refusals");

  OptimOptions bare = optimizer(OptimizerKind::sgd);
  bare.momentum = 0;
  Job simple(training(10), bare);
  EXPECT_EQ(
      refusal(simple),
      path.string() +
          " does not fit this job: it has momentum/net.hidden.weight, which this job has not" +
          advice);
}

TEST(Trainer, RejectsTheStateOfADeeperModel) {
  ScratchFolder folder;
  const RandomTokens data(32, 8, 1);
  const ModelOptions sizes{.layers = 3, .width = 16, .heads = 2, .vocab = 32, .context = 8};
  Stack deep = gpt(sizes);
  Trainer(deep, data, {.train = training(4), .optim = optimizer()}).save(folder / "state");
  ModelOptions fewer = sizes;
  fewer.layers = 2;
  Stack shallow = gpt(fewer);
  Trainer trainer(shallow, data, {.train = training(4), .optim = optimizer()});
  const auto sentence = thrown<InvalidArgument>([&] { trainer.restore(folder / "state"); });
  EXPECT_NE(sentence.find("does not fit this job: it has master/transformer.h.2."),
            std::string::npos)
      << sentence;
}

TEST(Trainer, RejectsAFileThatIsNotAState) {
  ScratchFolder folder;
  Job run(training(10));
  write_tensors(folder / "weights", {{"w", {1}, at::kFloat, [] { return at::empty({1}); }}}, {});
  EXPECT_EQ(thrown<Corrupt>([&] { run.trainer->restore(folder / "weights"); }),
            (folder / "weights").string() + " is no state of a run: its metadata has no step");
  run.trainer->save(folder / "state");
  std::filesystem::resize_file(folder / "state", std::filesystem::file_size(folder / "state") - 1);
  EXPECT_NE(thrown<Corrupt>([&] {
              run.trainer->restore(folder / "state");
            }).find((folder / "state").string()),
            std::string::npos);
}

// A loss that fails at its seventh call.
LossFunction poisoned(double value, bool only_the_gradient) {
  auto calls = std::make_shared<int>(0);
  return [calls, value, only_the_gradient](const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor loss = at::mse_loss(output, target);
    if (++*calls != 7) return loss;
    // value * (x - x) is 0 with gradient value - value: finite numbers whose gradient is not.
    return only_the_gradient ? loss + (output - output.detach()).abs().sqrt().mean() * value
                             : loss * value;
  };
}

TEST(Trainer, StopsAtANonFiniteLossWithTheWeightsBeforeIt) {
  struct Case {
    double value;
    bool only_the_gradient;
    const char* became;
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
    for (const auto& [value, only_the_gradient, became] :
         {Case{nan, false, "the loss became NaN"},
          Case{infinity, false, "the loss became infinite"},
          Case{1, true, "the gradient became NaN"}}) {
      Job bad(training(20, precision), optimizer(), poisoned(value, only_the_gradient)),
          good(training(20, precision));
      const std::string said = thrown<NotFinite>([&] { bad.trainer->run(); });
      EXPECT_EQ(bad.trainer->step(), 6);
      ASSERT_EQ(bad.reports.size(), 6U);
      ASSERT_LT(bad.reports[5].loss, bad.reports[0].loss);
      EXPECT_EQ(said, fmt::format("{} at step 7; the weights are those after step 6. The step "
                                  "before had a loss of {:.4g} and a gradient norm of {:.4g}: a "
                                  "lower optim.rate or optim.clip may help, or step 7 has unusual "
                                  "data",
                                  became, bad.reports[5].loss, bad.reports[5].grad_norm));
      good.trainer->run_until(6);
      for (const auto& p : good.stack.parameters()) {
        EXPECT_TRUE(
            at::equal(bad.trainer->master(*bad.stack.find(p.name)), good.trainer->master(p)))
            << p.name << " in " << precision;
      }
    }
  }
}

TEST(Trainer, StopsBeforeAStepWhoseRateIsNotFinite) {
  OptimOptions optim = optimizer();
  optim.custom_schedule = [](std::int64_t step, std::int64_t) {
    return step == 6 ? std::nan("") : 0.5;
  };
  Job bad(training(20), optim), good(training(20), optim);
  EXPECT_EQ(thrown<InvalidArgument>([&] { bad.trainer->run(); }),
            "optim.custom_schedule(6, 20) is nan, so step 7 would have the rate nan: return a "
            "finite share of optim.rate, 0 or more");
  EXPECT_EQ(bad.trainer->step(), 6);
  good.trainer->run_until(6);
  for (const auto& p : good.stack.parameters())
    EXPECT_TRUE(at::equal(bad.trainer->master(*bad.stack.find(p.name)), good.trainer->master(p)))
        << p.name;
}

TEST(Trainer, ContinuesAfterANonFiniteLossOnceRestored) {
  ScratchFolder folder;
  Job run(training(20), optimizer(), poisoned(std::nan(""), false)), whole(training(20));
  run.trainer->run_until(4);
  run.trainer->save(folder / "state");
  EXPECT_NE(thrown<Error>([&] { run.trainer->run(); }), "(nothing was thrown)");
  run.trainer->restore(folder / "state");
  run.trainer->run();
  whole.trainer->run();
  expect_same_bits(run, whole, "restored after NaN");
}

TEST(Trainer, EndsAfterAWholeStepWhenToldToStop) {
  Job stopped(training(12)), whole(training(12));
  std::atomic<bool> stop = false;
  stopped.trainer->on_step([&](const StepReport& report) { stop = report.step == 5; });
  stopped.trainer->run(&stop);
  EXPECT_EQ(stopped.trainer->step(), 5);
  stopped.trainer->run(&stop);
  EXPECT_EQ(stopped.trainer->step(), 5) << "it is still set";
  stop = false;
  stopped.trainer->run(&stop);
  EXPECT_EQ(stopped.trainer->step(), 12);
  whole.trainer->run();
  expect_same_bits(stopped, whole, "stopped and gone on");
}

TEST(Trainer, ChangesOnlyTrainableParameters) {
  Job run(training(10));
  std::vector<at::Tensor> before;
  for (const auto& p : run.stack.parameters()) before.push_back(p.value.clone());
  run.trainer->run();
  std::size_t i = 0;
  for (const auto& p : run.stack.parameters()) {
    EXPECT_EQ(at::equal(p.value, before[i++]), p.name == "net.gain") << p.name;
  }
}

TEST(Trainer, TrainsTheUsersOwnModule) {
  Job run(training(10));
  run.trainer->run();
  EXPECT_EQ(run.net->out->weight.const_data_ptr(),
            run.stack.find("net.out.weight")->value.const_data_ptr());
  run.net->eval();
  const at::Tensor x = noise({4, 3}, 9);
  EXPECT_TRUE(at::equal(run.net->forward(x), run.stack.infer(x)));
}

TEST(Trainer, GivesTheSameParametersHoweverTheBatchIsCut) {
  const auto trained = [](std::int64_t micro_batches) {
    Stack stack = gpt({.layers = 1, .width = 12, .heads = 3, .vocab = 16, .context = 5});
    const RandomTokens data(16, 5, 1);
    TrainOptions train = training(5, Precision::fp64);
    train.micro_batches = micro_batches;
    Trainer(stack, data, {.train = train, .optim = optimizer()}).run();
    // Adam turns the gradient of the key bias, which is zero except for rounding, into whole steps:
    // leave it out.
    for (const auto& p : stack.parameters()) {
      if (p.name.ends_with("c_attn.bias")) at::Tensor(p.value).zero_();
    }
    return stack.values().clone();
  };
  const at::Tensor whole = trained(1);
  for (const std::int64_t micro_batches : {2, 5, 20})
    EXPECT_TRUE(close(trained(micro_batches), whole, 1e-7)) << micro_batches;
}

TEST(Trainer, EvaluatesTheMeanOverTheSamplesAskedFor) {
  Job run(training(10, Precision::fp64));
  run.trainer->run();
  for (const std::int64_t count :
       {1, 20, 33, 200, 1000}) {  // whole batches, parts of one, more than there are
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 200); ++i) indices.push_back(i);
    const Batch batch = run.data.get(indices);
    const at::Tensor output = run.stack.infer(batch.input.to(at::kDouble));
    EXPECT_NEAR(run.trainer->evaluate(run.data, count),
                mean_square(output, batch.target.to(at::kDouble)).item<double>(), 1e-12)
        << count;
  }
}

TEST(Trainer, TakesItsInitialValuesFromASource) {
  Job run(training(10, Precision::bf16));
  run.trainer->load([](const Parameter&, at::Tensor out) { out.fill_(0.1); });
  EXPECT_EQ(run.trainer->master(*run.stack.find("net.hidden.weight"))[0][0].item<float>(), 0.1F);
  EXPECT_EQ(run.net->hidden->weight[0][0].item<double>(), 0.10009765625) << "the nearest bf16";
  EXPECT_EQ(run.net->gain[0].item<double>(), 0.10009765625);
}

TEST(Trainer, AccountsForTheModelsMemoryExactly) {
  struct Case {
    Precision precision;
    OptimizerKind name;
    std::uint64_t parameters, gradients, optimizer;  // bytes per element
  };
  for (const auto& [precision, name, parameters, gradients, state] :
       {Case{Precision::fp32, OptimizerKind::adamw, 4, 4, 8},
        Case{Precision::fp64, OptimizerKind::adamw, 8, 8, 16},
        Case{Precision::bf16, OptimizerKind::adamw, 2, 2, 12},
        Case{Precision::fp32, OptimizerKind::sgd, 4, 4, 4},
        Case{Precision::fp16, OptimizerKind::adamw, 2, 2, 12},
        Case{Precision::bf16, OptimizerKind::sgd, 2, 2, 8}}) {
    const RandomTokens data(32, 8, 1);
    Stack stack = gpt({.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8});
    Trainer trainer(stack, data, {.train = training(3, precision), .optim = optimizer(name)});
    trainer.run();
    const auto elements = static_cast<std::uint64_t>(stack.values().numel());
    for (const auto& use : {trainer.memory().now(), trainer.memory().at_peak()}) {
      EXPECT_EQ(use[MemoryKind::parameters], parameters * elements) << precision << " " << name;
      EXPECT_EQ(use[MemoryKind::gradients], gradients * elements) << precision << " " << name;
      EXPECT_EQ(use[MemoryKind::optimizer], state * elements) << precision << " " << name;
    }
    EXPECT_EQ(trainer.memory().now()[MemoryKind::activations], 0U) << precision << " " << name;
    EXPECT_GT(trainer.memory().at_peak()[MemoryKind::activations], 0U);
  }
}

TEST(Trainer, RejectsInvalidOptions) {
  const auto refusal = [](const TrainOptions& train) {
    return thrown<InvalidArgument>([&] { Job run(train); });
  };
  TrainOptions train = training(10);
  train.micro_batches = 21;
  EXPECT_EQ(refusal(train),
            "train.batch = 20 is too small for 1 rank of 21 micro-batches: each needs a sample; "
            "set train.batch=21 or more");
  train = training(10);
  train.graph = Switch::on;
  EXPECT_EQ(refusal(train), "train.graph=on needs train.device=cuda");
  train = training(10);
  train.precision = Precision(8);
  EXPECT_EQ(refusal(train),
            "train.precision is \"value 8\" (set in code); allowed: auto, fp64, fp32, bf16, fp16");
  train = training(10);
  train.device = DeviceKind::cuda;
  if (!cuda_built()) {
    EXPECT_EQ(
        refusal(train),
        "train.device=cuda, but this build has no CUDA: set train.device=cpu, or build against a "
        "CUDA build of torch");
  } else if (cuda_devices() == 0) {
    EXPECT_EQ(refusal(train),
              "train.device=cuda, but there is no CUDA GPU here: set train.device=cpu");
  }
}

}  // namespace
}  // namespace echelon
