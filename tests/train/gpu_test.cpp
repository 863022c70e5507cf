// What only a GPU can show: recorded steps equal eager ones, a step that is not finite never
// reaches the weights, every attention kernel agrees with the CPU, and a restored run continues.
// Skipped without a GPU.
#include <gtest/gtest.h>

#include "echelon/data/dataset.h"
#include "echelon/data/random_sentences.h"
#include "echelon/models/family.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/step/device.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_built()) GTEST_SKIP() << "this build has no CUDA";
    if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

ModelOptions small(std::int64_t width = 64, std::int64_t heads = 2) {
  return {.layers = 2, .width = width, .heads = heads, .vocab = 96, .context = 40};
}

struct Result {
  std::vector<double> losses;
  at::Tensor weights;
  std::string error;
};

std::unique_ptr<Dataset> data_for(const ModelOptions& model) {
  const auto sentences = [&](RandomSentences::Goal goal) {
    return std::make_unique<RandomSentences>(model.vocab, model.context, 1, goal);
  };
  switch (task_of(model)) {
    case ModelTask::classify:
      return sentences({.labels = model.task.labels});
    case ModelTask::mlm:
      return sentences({.masked = model.task.mask});
    default:
      return std::make_unique<RandomTokens>(model.vocab, model.context, 1);
  }
}

Result train(const ModelOptions& model, const TrainOptions& options,
             const OptimOptions& optim = {.rate = 1e-3, .warmup = 0}) {
  Stack stack = family_of(model).build(model);
  const auto sentences = data_for(model);
  const Dataset& data = *sentences;
  Trainer trainer(stack, data, {.train = options, .optim = optim});
  Result run;
  trainer.on_step([&](const StepReport& report) { run.losses.push_back(report.loss); });
  try {
    trainer.run();
  } catch (const NotFinite& error) {
    run.error = error.what();
  }
  run.weights = stack.values().to(at::kCPU, at::kDouble);
  return run;
}

TrainOptions on_gpu(Precision precision, Switch graph, std::int64_t steps = 12) {
  return {.steps = steps,
          .batch = 4,
          .device = DeviceKind::cuda,
          .precision = precision,
          .graph = graph};
}

TEST_F(Gpu, RecordedStepsGiveTheBitsOfEagerOnes) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    const Result eager = train(small(), on_gpu(precision, Switch::off)),
                 graph = train(small(), on_gpu(precision, Switch::on));
    EXPECT_EQ(eager.losses, graph.losses) << precision;
    EXPECT_TRUE(eager.weights.equal(graph.weights)) << precision;
  }
}

// Head widths 32, 160 and 13 use different kernels; see attention.h.
TEST_F(Gpu, EveryAttentionKernelAgreesWithTheCpu) {
  struct Case {
    std::int64_t width, heads;
    Precision precision;
    double bound;
  };
  for (const Case& c : {Case{64, 2, Precision::fp64, 1e-7}, Case{64, 2, Precision::fp32, 1e-4},
                        Case{26, 2, Precision::fp32, 1e-4}, Case{64, 2, Precision::bf16, 2e-2},
                        Case{320, 2, Precision::bf16, 2e-2}, Case{26, 2, Precision::bf16, 2e-2}}) {
    TrainOptions cpu = on_gpu(Precision::fp64, Switch::off, 5);
    cpu.device = DeviceKind::cpu;
    const Result reference = train(small(c.width, c.heads), cpu);
    const Result run = train(small(c.width, c.heads), on_gpu(c.precision, Switch::automatic, 5));
    ASSERT_EQ(run.losses.size(), reference.losses.size());
    for (std::size_t i = 0; i < run.losses.size(); ++i)
      EXPECT_NEAR(run.losses[i], reference.losses[i], c.bound)
          << c.precision << " width " << c.width << " step " << i + 1;
  }
}

// Sentences are padded, so attention takes other kernels than without a mask: those over runs of
// tokens, and with a mask where these do not fit.
TEST_F(Gpu, EveryFamilyAndTaskAgreesWithTheCpu) {
  for (const auto& [family, task] : {std::pair{"llama", ModelTask::causal},
                                     {"bert", ModelTask::mlm},
                                     {"bert", ModelTask::classify}})
    for (const std::int64_t width : {64, 320, 52})
      for (const auto& [precision, bound] :
           {std::pair{Precision::fp64, 1e-7}, {Precision::fp32, 1e-4}, {Precision::bf16, 4e-2}})
        for (const Switch graph : {Switch::off, Switch::on}) {
          ModelOptions model = small(width);
          model.family = family;
          model.task.name = task;
          if (task == ModelTask::classify) model.task.labels = 3;
          TrainOptions cpu = on_gpu(Precision::fp64, Switch::off, 6);
          cpu.device = DeviceKind::cpu;
          const Result reference = train(model, cpu),
                       run = train(model, on_gpu(precision, graph, 6));
          ASSERT_EQ(run.losses.size(), reference.losses.size());
          for (std::size_t i = 0; i < run.losses.size(); ++i)
            EXPECT_NEAR(run.losses[i], reference.losses[i], bound)
                << family << " " << name_of(task) << ", " << precision << ", width " << width
                << ", graph " << graph << ", step " << i + 1;
        }
}

TEST_F(Gpu, AStepThatIsNotFiniteNeverReachesTheWeights) {
  for (const Switch graph : {Switch::on, Switch::off}) {
    OptimOptions wild{.rate = 1e30, .schedule = RateSchedule::constant, .warmup = 0, .clip = 0};
    const Result run = train(small(), on_gpu(Precision::fp32, graph, 40), wild);
    ASSERT_NE(run.error.find("at step 2"), std::string::npos) << run.error;
    const Result one = train(small(), on_gpu(Precision::fp32, graph, 1), wild);
    EXPECT_TRUE(run.weights.equal(one.weights)) << graph;
  }
}

TEST_F(Gpu, ARestoredRunContinuesWithTheSameBits) {
  const ScratchFolder folder;
  const auto model = small();
  const RandomTokens data(model.vocab, model.context, 1);
  const TrainOptions options = on_gpu(Precision::bf16, Switch::on, 14);
  const OptimOptions optim{.rate = 1e-3, .warmup = 0};
  const Result whole = train(model, options, optim);
  {
    Stack stack = gpt(model);
    Trainer trainer(stack, data, {.train = options, .optim = optim});
    trainer.run_until(7);
    trainer.save(folder.path() / "state");
  }
  Stack stack = gpt(model);
  Trainer trainer(stack, data, {.train = options, .optim = optim});
  trainer.restore(folder.path() / "state");
  trainer.run();
  EXPECT_TRUE(stack.values().to(at::kCPU, at::kDouble).equal(whole.weights));
}

}  // namespace
}  // namespace echelon
