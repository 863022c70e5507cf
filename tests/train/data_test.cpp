// How a trainer reads its data: ahead, padded, mixed, from streams; on any number of ranks.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/data/mixture.h"
#include "echelon/data/stream.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/nn/module_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

// Sequences of 1 to 30 tokens with a mask; the target is a number for each.
class Sentences : public Dataset {
 public:
  explicit Sentences(std::int64_t size = 90, std::int64_t forms = 1) : size_(size), forms_(forms) {}
  std::int64_t size() const override { return size_; }
  std::int64_t variants() const override { return forms_; }
  std::int64_t length(std::int64_t i) const override { return 1 + i % size_ * 7 % max_length(); }
  std::int64_t max_length() const override { return 30; }
  Batch get(std::span<const std::int64_t> indices) const override {
    return padded(indices, max_length());
  }
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t longest) const override {
    seen.push_back(longest);
    return padded(indices, longest);
  }
  mutable std::vector<std::int64_t> seen;  // lengths that batches were padded to, in order

 private:
  Batch padded(std::span<const std::int64_t> indices, std::int64_t longest) const {
    const auto samples = std::int64_t(indices.size());
    Batch batch{at::zeros({samples, longest}, at::kLong),
                at::zeros({samples, 1}, at::kDouble),
                {{"mask", at::zeros({samples, longest}, at::kDouble)}}};
    for (std::int64_t row = 0; row < samples; ++row) {
      const auto i = indices[std::size_t(row)], tokens = length(i);
      for (std::int64_t t = 0; t < tokens; ++t) batch.input[row][t] = (i * 31 + t * t) % 16;
      batch.at("mask")[row].narrow(0, 0, tokens).fill_(1);
      batch.target[row][0] = double(i % 7) / 7;
    }
    return batch;
  }

  std::int64_t size_, forms_;
};

// The mean of the embeddings of the tokens that the mask has.
struct MeanImpl : nn::Module {
  nn::Embedding table = register_module("table", nn::Embedding(16, 5));
  nn::Linear head = register_module("head", nn::Linear(5, 1));
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& mask) {
    const at::Tensor weight = mask / mask.sum(1, true);
    return head->forward((table->forward(tokens) * weight.unsqueeze(2)).sum(1));
  }
};
TORCH_MODULE(Mean);

struct Result {
  std::vector<double> losses;
  std::vector<double> data_seconds;
  double validation = 0;
  bool operator==(const Result& other) const {
    return losses == other.losses && validation == other.validation;
  }
};

TrainerOptions options(std::int64_t ahead = 4) {
  return {.train = {.steps = 12,
                    .batch = 12,
                    .ahead = ahead,
                    .sort_batches = 5,
                    .precision = Precision::fp64,
                    .check_every = 1},
          .optim = {.rate = 0.05, .schedule = RateSchedule::constant, .warmup = 1},
          .pipeline = {.balance = BalanceBy::count, .stages = {}}};
}

struct Model {
  Mean mean;
  Stack stack;
  Model() {
    const at::NoGradGuard no_grad;
    mean->to(at::kDouble);
    double value = 0;
    for (auto& parameter : mean->parameters())
      for (std::int64_t i = 0; i < parameter.numel(); ++i)
        parameter.view({-1})[i].fill_(std::sin(value += 1.3) * 0.5);
    stack.reads({"input", "mask"}).add(module_layer("mean", mean));
    stack.add(loss_layer(
        [](const at::Tensor& out, const at::Tensor& target) { return at::mse_loss(out, target); }));
  }
};

Result trained(const Dataset& data, const TrainerOptions& job,
               std::shared_ptr<Communicator> ranks = nullptr) {
  Model model;
  Trainer trainer(model.stack, data, job, std::move(ranks));
  Result result;
  trainer.on_step([&](const StepReport& step) {
    result.losses.push_back(step.loss);
    result.data_seconds.push_back(step.times.data);
  });
  trainer.run();
  result.validation = trainer.evaluate_together(data, 50);
  return result;
}

void expect_near(const Result& seen, const Result& expected) {
  ASSERT_EQ(seen.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < seen.losses.size(); ++i)
    EXPECT_NEAR(seen.losses[i], expected.losses[i], 1e-12) << "step " << i;
  EXPECT_NEAR(seen.validation, expected.validation, 1e-12);
}

TEST(TrainerData, ReadAheadGivesTheSameBitsAsTheLoopItself) {
  at::set_num_threads(1);
  const Sentences data;
  const Result in_loop = trained(data, options(0));
  for (const std::int64_t ahead : {1, 2, 9}) EXPECT_EQ(trained(data, options(ahead)), in_loop);
  for (const double seconds : in_loop.data_seconds) EXPECT_GT(seconds, 0) << "the loop reads";
}

TEST(TrainerData, SamplesOfDifferentLengthsArePaddedAlikeOnAnyNumberOfRanks) {
  at::set_num_threads(1);
  const Sentences alone;
  const Result expected = trained(alone, options());
  const std::vector<std::int64_t> lengths(alone.seen.begin(), alone.seen.begin() + 12);
  const Sampler sampler(1, alone, 12, 5);
  for (std::int64_t step = 0; step < 12; ++step)
    EXPECT_EQ(lengths[std::size_t(step)],
              std::min<std::int64_t>((sampler.longest(step) + 7) / 8 * 8, 30));
  EXPECT_GT(std::set(lengths.begin(), lengths.end()).size(), 2U);
  for (const int world : {2, 3, 4})
    run_ranks_well({.world = world}, [&](Group& group) {
      const Sentences data;
      expect_near(trained(data, options(), native_communicator(group.shared_from_this())),
                  expected);
      data.seen.resize(12);
      EXPECT_EQ(data.seen, lengths) << "the longest of the global batch, not of this rank's part";
    });
  run_ranks_well({.world = 2}, [&](Group& group) {
    const Sentences data;
    TrainerOptions job = options();
    job.train.micro_batches = 3;
    job.parallel.pipeline = 2;
    expect_near(trained(data, job, native_communicator(group.shared_from_this())), expected);
  });
}

TEST(TrainerData, LengthsOfPaddedSamplesHaveACommonDivisor) {
  const Sentences data;  // of up to 30 tokens
  using Pair = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [pad_to, divisor] : {Pair{8, 2}, {5, 5}, {7, 1}}) {
    EXPECT_EQ(length_divisor(data, pad_to), divisor);
    for (std::int64_t length = 1; length <= 30; ++length)
      EXPECT_EQ(padded_length(data, length, pad_to) % divisor, 0) << length;
  }
  EXPECT_EQ(length_divisor(TensorDataset(at::zeros({2, 3}), at::zeros({2})), 8), 0);
}

TEST(TrainerData, EqualsAPlainLoopOverTheSamplersBatches) {
  at::set_num_threads(1);
  const Sentences data;
  const Result seen = trained(data, options());
  // The loss of the first step, over its samples one by one and without padding.
  Model model;
  const at::NoGradGuard no_grad;
  double loss = 0;
  for (const auto i : Sampler(1, data, 12, 5).indices(0, 0, 12)) {
    const std::vector<std::int64_t> one = {i};
    const Batch sample = data.get_padded(one, data.length(i));
    loss += at::mse_loss(model.mean->forward(sample.input, sample.at("mask")), sample.target)
                .item<double>();
  }
  EXPECT_NEAR(seen.losses[0], loss / 12, 1e-12);
}

TEST(TrainerData, GoesOnInTheMiddleOfAnEpochAndOfASortedGroup) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const auto data = std::make_shared<const Sentences>(90, 3);
  const Mixture mixture({{data, 2}, {std::make_shared<const Sentences>(40), 1}});
  const auto run = [&](std::int64_t pause) {
    Model first, second;
    std::vector<double> losses;
    const auto keep = [&](const StepReport& step) { losses.push_back(step.loss); };
    Trainer trainer(first.stack, mixture, options());
    trainer.on_step(keep);
    trainer.run_until(pause);
    if (pause == 12) return losses;
    trainer.save(folder / "state");
    Trainer other(second.stack, mixture, options());
    other.on_step(keep);
    other.restore(folder / "state");
    other.run();
    return losses;
  };
  const auto whole = run(12);
  for (const std::int64_t pause : {1, 3, 5, 7, 11}) EXPECT_EQ(run(pause), whole) << pause;
}

// Its samples take longer to read than a step to compute, unless steps wait for `release`.
struct Slow : Sentences {
  mutable std::atomic<int> reads = 0;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t longest) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    Batch batch = Sentences::get_padded(indices, longest);
    ++reads;
    return batch;
  }
};

TEST(TrainerData, ASlowDatasetIsReadWhileStepsAreComputed) {
  at::set_num_threads(1);
  const Slow data;
  Model model;
  TrainerOptions job = options(3);
  job.train.steps = 40;
  Trainer trainer(model.stack, data, job);
  const int before = data.reads;
  std::vector<double> waited;
  // A computation that takes until what may be ahead has been read.
  trainer.on_step([&](const StepReport& step) {
    waited.push_back(step.times.data);
    const auto expected = std::min<std::int64_t>(step.step + 2, job.train.steps);
    for (int i = 0; i < 30'000 && data.reads - before < expected; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // to hand the batch over
  });
  trainer.run();
  EXPECT_EQ(data.reads - before, 40) << "each batch was read once";
  ASSERT_EQ(waited.size(), 40U);
  EXPECT_GT(waited[0], 0) << "the first batch";
  // Exactly 0: the batch was there. A busy machine may delay a thread once in a while.
  EXPECT_GT(std::count(waited.begin() + 1, waited.end(), 0.0), 35);
}

TEST(TrainerData, NothingIsReadBetweenCalls) {
  const Slow data;
  Model model;
  Trainer trainer(model.stack, data, options(9));
  trainer.run_until(2);
  const int before = data.reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(data.reads, before);
}

// Counts how many threads are in it.
struct NotConcurrent : Sentences {
  mutable std::atomic<int> inside = 0;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t longest) const override {
    EXPECT_EQ(++inside, 1);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    Batch batch = Sentences::get_padded(indices, longest);
    --inside;
    return batch;
  }
};

TEST(TrainerData, ADatasetIsReadByOneThreadAtATimeUnlessItSaysOtherwise) {
  const NotConcurrent data;
  Model model;
  Trainer trainer(model.stack, data, options(4));
  trainer.on_step([&](const StepReport&) { trainer.evaluate(data, 30); });
  trainer.run();
}

TEST(TrainerData, AnErrorOfADatasetReachesTheCallerAtItsStep) {
  struct Broken : Sentences {
    Batch get_padded(std::span<const std::int64_t> indices, std::int64_t longest) const override {
      const auto bad = Sampler(1, *this, 12, 5).index(4, 0);
      for (const auto i : indices)
        if (i == bad && indices.size() == 12) throw Error("sample cannot be decoded");
      return Sentences::get_padded(indices, longest);
    }
  };
  const Broken data;
  Model model;
  Trainer trainer(model.stack, data, options());
  EXPECT_EQ(thrown<Error>([&] { trainer.run(); }), "sample cannot be decoded");
  EXPECT_EQ(trainer.step(), 4) << "the steps before it were computed";
}

TEST(TrainerData, SamplesOfDifferentLengthsMustSayHowTheyArePadded) {
  struct NoPadding : TensorDataset {
    using TensorDataset::TensorDataset;
    std::int64_t length(std::int64_t) const override { return 3; }
  };
  const NoPadding data(at::zeros({4, 3}, at::kLong), at::zeros({4, 1}));
  Model model;
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { Trainer(model.stack, data, options()).run(); }),
      "the dataset has samples of different lengths (Dataset::length) and does not say how to "
      "pad them: implement Dataset::get_padded");
}

struct Sequence : StreamDataset {
  std::int64_t at = 0;
  Batch next() override {
    ++at;
    return {at::full({1, 4}, at % 16, at::kLong),
            at::full({1, 1}, double(at % 5), at::kDouble),
            {{"mask", at::full({1, 4}, 1.0, at::kDouble)}}};
  }
};

TEST(TrainerData, AStreamIsUsedInItsOrderOnEveryRank) {
  at::set_num_threads(1);
  const auto run = [&](std::shared_ptr<Communicator> ranks) {
    const Sequence stream;
    Model model;
    Trainer trainer(model.stack, stream, options(), std::move(ranks));
    Result result;
    trainer.on_step([&](const StepReport& step) { result.losses.push_back(step.loss); });
    trainer.run();
    EXPECT_EQ(stream.at, 12 * 12);
    return result;
  };
  const Result expected = run(nullptr);
  run_ranks_well({.world = 3}, [&](Group& group) {
    expect_near(run(native_communicator(group.shared_from_this())), expected);
  });
  // The first batch is the first twelve samples.
  Sequence stream;
  Model model;
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> first(12);
  for (std::int64_t i = 0; i < 12; ++i) first[std::size_t(i)] = i;
  const Batch batch = stream.get(first);
  EXPECT_NEAR(
      expected.losses[0],
      at::mse_loss(model.mean->forward(batch.input, batch.at("mask")), batch.target).item<double>(),
      1e-12);
}

TEST(TrainerData, AResumedRunSkipsInItsStream) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  std::vector<double> losses, again;
  {
    const Sequence stream;
    Model model;
    Trainer trainer(model.stack, stream, options());
    trainer.on_step([&](const StepReport& step) { losses.push_back(step.loss); });
    trainer.run_until(5);
    trainer.save(folder / "state");
    trainer.run();
  }
  const Sequence stream;
  Model model;
  Trainer trainer(model.stack, stream, options());
  trainer.on_step([&](const StepReport& step) { again.push_back(step.loss); });
  trainer.restore(folder / "state");
  trainer.run();
  EXPECT_EQ(again, std::vector<double>(losses.begin() + 5, losses.end()));
}

}  // namespace
}  // namespace echelon
