#include "echelon/train/metric.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/corrcoef.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include "echelon/base/error.h"
#include "echelon/nn/module_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

// Logits whose largest is at `answer`.
at::Tensor logits_of(const at::Tensor& answer, std::int64_t labels) {
  return at::one_hot(answer, labels).to(at::kFloat) * 3 + at::rand({answer.numel(), labels});
}

Scores scores_of(const at::Tensor& answer, const at::Tensor& target, std::int64_t labels) {
  const auto metric = classification_metric(labels);
  const at::Tensor counts = metric->none();
  const at::Tensor logits = logits_of(answer, labels);
  // In two parts, as batches come.
  const auto half = answer.numel() / 3;
  for (const auto& [first, count] :
       {std::pair{std::int64_t{0}, half}, std::pair{half, answer.numel() - half}})
    metric->add(counts, logits.narrow(0, first, count), target.narrow(0, first, count));
  return metric->scores(counts);
}

double score(const Scores& scores, const char* name) {
  const double* const found = find_score(scores, name);
  EXPECT_NE(found, nullptr) << name;
  return found ? *found : -2;
}

TEST(Metric, OfTwoLabelsEqualsItsDefinitions) {
  at::manual_seed(1);
  const at::Tensor target = at::rand({500}).lt(0.3).to(at::kLong);
  const at::Tensor answer = at::where(at::rand({500}).lt(0.8), target, 1 - target);
  const Scores scores = scores_of(answer, target, 2);
  const auto count = [&](int told, int truly) {
    return (answer.eq(told) * target.eq(truly)).sum().item<double>();
  };
  EXPECT_EQ(score(scores, "accuracy"), answer.eq(target).to(at::kDouble).mean().item<double>());
  const double precision = count(1, 1) / (count(1, 1) + count(1, 0)),
               recall = count(1, 1) / (count(1, 1) + count(0, 1));
  EXPECT_NEAR(score(scores, "precision"), precision, 1e-12);
  EXPECT_NEAR(score(scores, "recall"), recall, 1e-12);
  EXPECT_NEAR(score(scores, "f1"), 2 * precision * recall / (precision + recall), 1e-12);
  // Matthews's coefficient is Pearson's correlation of the two sequences of 0 and 1.
  const at::Tensor both = at::stack({answer, target}).to(at::kDouble);
  EXPECT_NEAR(score(scores, "matthews"), at::corrcoef(both)[0][1].item<double>(), 1e-12);
}

TEST(Metric, OfSeveralLabelsEqualsItsDefinitions) {
  at::manual_seed(2);
  constexpr std::int64_t labels = 5;
  const at::Tensor target = at::randint(labels, {700}, at::kLong);
  const at::Tensor answer =
      at::where(at::rand({700}).lt(0.6), target, at::randint(labels, {700}, at::kLong));
  const Scores scores = scores_of(answer, target, labels);
  double f1 = 0;
  for (int k = 0; k < labels; ++k)
    f1 += 2 * (answer.eq(k) * target.eq(k)).sum().item<double>() /
          (answer.eq(k).sum() + target.eq(k).sum()).item<double>() / labels;
  EXPECT_NEAR(score(scores, "f1"), f1, 1e-12);
  // Gorodkin's R_K: covariance of the one-hot matrices, normalised.
  const auto centred = [&](const at::Tensor& of) {
    const at::Tensor hot = at::one_hot(of, labels).to(at::kDouble);
    return hot - hot.mean(0, /*keepdim=*/true);
  };
  const at::Tensor a = centred(answer), t = centred(target);
  const double expected = ((a * t).sum() / ((a * a).sum() * (t * t).sum()).sqrt()).item<double>();
  EXPECT_NEAR(score(scores, "matthews"), expected, 1e-12);
}

// Labels 3 and 5 of a head of six occur nowhere, label 2 only among the answers, and label 4 only
// among the targets.
TEST(Metric, LeavesOutLabelsThatOccurNowhere) {
  const at::Tensor target = at::tensor({0, 0, 0, 1, 1, 4}, at::kLong),
                   answer = at::tensor({0, 0, 1, 1, 2, 0}, at::kLong);
  const Scores scores = scores_of(answer, target, 6);
  // Of labels 0, 1, 2 and 4.
  EXPECT_NEAR(score(scores, "precision"), (2.0 / 3 + 1.0 / 2 + 0 + 0) / 4, 1e-12);
  EXPECT_NEAR(score(scores, "recall"), (2.0 / 3 + 1.0 / 2 + 0 + 0) / 4, 1e-12);
  EXPECT_NEAR(score(scores, "f1"), (4.0 / 6 + 2.0 / 4 + 0 + 0) / 4, 1e-12);
  // Nothing changes with a larger head.
  for (const auto& [name, value] : scores_of(answer, target, 40))
    EXPECT_NEAR(value, score(scores, name.c_str()), 1e-12) << name;
}

TEST(Metric, IsZeroWhereItIsAQuotientOfZeros) {
  const at::Tensor zeros = at::zeros({4}, at::kLong);
  const Scores scores = scores_of(zeros, zeros, 2);
  EXPECT_EQ(score(scores, "accuracy"), 1);
  for (const char* name : {"f1", "precision", "recall", "matthews"})
    EXPECT_EQ(score(scores, name), 0) << name;
}

TEST(Metric, DoesNotCountRowsWithoutATarget) {
  const at::Tensor answer = at::ones({6}, at::kLong);
  const at::Tensor target = at::tensor({1, -100, 0, 1, -100, -100}, at::kLong);
  EXPECT_NEAR(score(scores_of(answer, target, 2), "accuracy"), 2.0 / 3, 1e-12);
  const auto tokens = token_metric();
  const at::Tensor counts = tokens->none();
  tokens->add(counts, logits_of(answer, 9), target);
  EXPECT_NEAR(score(tokens->scores(counts), "accuracy"), 2.0 / 3, 1e-12);
}

TEST(Metric, RefusesWhatItCannotCount) {
  EXPECT_EQ(thrown<InvalidArgument>([] { classification_metric(1); }),
            "a classification has 2 labels or more, not 1");
  const auto metric = classification_metric(2);
  const at::Tensor three = at::full({1}, 3, at::kLong);
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              metric->add(metric->none(), at::zeros({1, 5}), three);
            }),
            "a metric of 2 labels got label 3");
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { metric->add(metric->none(), at::zeros({4}), at::zeros({4}, at::kLong)); }),
            "this metric compares rows of logits with one target each; the model gives [4] for "
            "targets of [4]");
}

// Samples in the plane, labelled by the quadrant.
class Quadrants : public Dataset {
 public:
  Quadrants() {
    at::manual_seed(4);
    points_ = at::randn({90, 2}, at::kDouble);
    labels_ =
        points_.select(1, 0).gt(0).to(at::kLong) + 2 * points_.select(1, 1).gt(0).to(at::kLong);
  }
  std::int64_t size() const override { return 90; }
  Batch get(std::span<const std::int64_t> indices) const override {
    return TensorDataset(points_, labels_).get(indices);
  }
  const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor points_, labels_;
};

// A metric of a user's own: the mean of the first logit, and a count of samples.
class FirstLogit : public Metric {
 public:
  at::Tensor none() const override { return at::zeros({2}, at::kDouble); }
  void add(at::Tensor counts, const at::Tensor& output, const at::Tensor&) const override {
    counts[0].add_(output.select(1, 0).sum());
    counts[1].add_(output.size(0));
  }
  Scores scores(const at::Tensor& counts) const override {
    return {{"first", (counts[0] / counts[1]).item<double>()},
            {"samples", counts[1].item<double>()}};
  }
  bool more_is_better(std::string_view score) const override { return score != "first"; }
};

TEST(Metric, GivesTheSameScoresInEveryLayout) {
  at::set_num_threads(1);
  const Quadrants data;
  const auto run = [&](const ParallelOptions& parallel, std::shared_ptr<Communicator> ranks,
                       std::int64_t samples) {
    torch::nn::Linear lift(2, 16), head(16, 4);
    for (auto& linear :
         {lift.ptr(), head.ptr()}) {  // ranks are threads: torch's generator is not theirs
      const at::NoGradGuard no_grad;
      linear->to(at::kDouble);
      for (auto& p : linear->parameters())
        p.copy_(at::arange(p.numel(), at::kDouble).mul(1.7).sin().view(p.sizes()));
    }
    Stack stack;
    stack.add(module_layer("lift", lift)).add(module_layer("head", head));
    stack.add(loss_layer([](const at::Tensor& output, const at::Tensor& target) {
      return torch::nn::functional::cross_entropy(output, target);
    }));
    PlanOptions job = tiny_options();
    job.train.precision = Precision::fp64;
    job.train.batch = 12;
    Trainer trainer(stack, data,
                    TrainerOptions{.train = job.train, .optim = job.optim, .parallel = parallel},
                    std::move(ranks));
    trainer.add_metric(classification_metric(4));
    trainer.add_metric(std::make_shared<FirstLogit>());
    Scores told;
    trainer.on_event([&](const Event& event) {
      if (const auto* report = std::get_if<ValidationReport>(&event)) told = report->scores;
    });
    trainer.run_until(4);
    const Evaluation seen = trainer.measure(data, samples);
    EXPECT_EQ(seen.scores, told);
    EXPECT_EQ(seen.counts.at(0).sum().item<double>(), static_cast<double>(samples));
    // From the outputs of all samples at once.
    const auto all = data.get(Sampler(1, 90, 90).indices(0, 0, 90));
    const at::Tensor output = trainer.infer(all.input);
    if (samples == 90) {
      EXPECT_NEAR(score(seen.scores, "accuracy"),
                  output.argmax(1).eq(all.target).to(at::kDouble).mean().item<double>(), 1e-12);
      EXPECT_NEAR(score(seen.scores, "first"), output.select(1, 0).mean().item<double>(), 1e-12);
    }
    return seen;
  };
  for (const std::int64_t samples : {90, 37}) {
    const Evaluation expected = run({}, nullptr, samples);
    EXPECT_EQ(score(expected.scores, "samples"), static_cast<double>(samples));
    struct Case {
      ParallelOptions parallel;
      int world;
    };
    for (const auto& one :
         {Case{{}, 2}, Case{{}, 3}, Case{{.zero = 3}, 2}, Case{{.pipeline = 3}, 3},
          Case{{.zero = 2, .pipeline = 2, .data = 2}, 4}})
      run_ranks_well({.world = one.world}, [&](Group& group) {
        const Evaluation seen =
            run(one.parallel, native_communicator(group.shared_from_this()), samples);
        EXPECT_NEAR(seen.loss, expected.loss, 1e-12);
        ASSERT_EQ(seen.scores.size(), expected.scores.size());
        for (std::size_t i = 0; i < seen.scores.size(); ++i)
          EXPECT_NEAR(seen.scores[i].second, expected.scores[i].second, 1e-12)
              << seen.scores[i].first;
        EXPECT_TRUE(seen.counts.at(0).equal(expected.counts.at(0)));
      });
  }
}

TEST(Metric, SaysInWhichDirectionItsScoresGetBetter) {
  const Quadrants data;
  Stack stack;
  stack.add(module_layer("head", torch::nn::Linear(2, 4)));
  stack.add(loss_layer([](const at::Tensor& output, const at::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target);
  }));
  const PlanOptions job = tiny_options();
  Trainer trainer(stack, data, TrainerOptions{.train = job.train, .optim = job.optim});
  trainer.add_metric(classification_metric(4));
  trainer.add_metric(std::make_shared<FirstLogit>());
  EXPECT_EQ(trainer.better("loss"), Better::less);
  EXPECT_EQ(trainer.better("f1"), Better::more);
  EXPECT_EQ(trainer.better("samples"), Better::more);
  EXPECT_EQ(trainer.better("first"), Better::less);
}

// Two heads, of which the first gives the labels.
struct TwoHeadsImpl : torch::nn::Module {
  torch::nn::Linear labels = register_module("labels", torch::nn::Linear(2, 4)),
                    other = register_module("other", torch::nn::Linear(2, 3));
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {labels->forward(x), other->forward(x)};
  }
};
TORCH_MODULE(TwoHeads);

TEST(Metric, SeesTheFirstOfSeveralOutputs) {
  const Quadrants data;
  TwoHeads heads;
  Stack stack;
  stack.add(module_layer("heads", heads));
  stack.add(batch_loss_layer([](const Tensors& outputs, const Batch& batch) {
    return torch::nn::functional::cross_entropy(outputs.at(0), batch.target) +
           outputs.at(1).pow(2).mean();
  }));
  const PlanOptions job = tiny_options();
  Trainer trainer(stack, data, TrainerOptions{.train = job.train, .optim = job.optim});
  trainer.add_metric(classification_metric(4));
  const Evaluation seen = trainer.measure(data, data.size());
  const at::Tensor all = data.get(evaluation_order(data, data.size())).input;
  const at::Tensor right = std::get<0>(heads->forward(all)).argmax(1).eq(data.labels());
  EXPECT_GT(right.sum().item<std::int64_t>(), 0);
  EXPECT_EQ(score(seen.scores, "accuracy"), right.to(at::kDouble).mean().item<double>());
}

// A user's own last layer, which shows metrics nothing.
class Silent : public Layer {
 public:
  Tensors forward_all(const Tensors& inputs, Pass& pass) override {
    if (!pass.target.defined()) return inputs;
    return {inputs.front().sum().to(at::kDouble)};
  }
  Tensors backward_all(const Tensors&, Pass&) override { return {at::Tensor()}; }
};

TEST(Metric, RefusesALastLayerThatPassesItNothing) {
  at::set_num_threads(1);
  const Quadrants data;
  const auto measured = [&](const ParallelOptions& parallel, std::shared_ptr<Communicator> ranks) {
    Stack stack;
    stack.add(module_layer("heads", torch::nn::Linear(2, 4))).add(std::make_unique<Silent>());
    const PlanOptions job = tiny_options();
    Trainer trainer(stack, data,
                    TrainerOptions{.train = job.train,
                                   .optim = job.optim,
                                   .parallel = parallel,
                                   .pipeline = {.balance = BalanceBy::count, .stages = {}}},
                    std::move(ranks));
    trainer.measure(data, data.size());  // without a metric it is none of its business
    trainer.add_metric(classification_metric(4));
    return thrown<InvalidArgument>([&] { trainer.measure(data, data.size()); });
  };
  const std::string expected = measured({}, nullptr);
  EXPECT_NE(expected.find("call pass.observe(outputs, pass.target)"), std::string::npos)
      << expected;
  for (const int pipeline : {1, 2})
    run_ranks_well({.world = 2}, [&](Group& group) {
      EXPECT_EQ(measured({.pipeline = pipeline}, native_communicator(group.shared_from_this())),
                expected);
    });
}

}  // namespace
}  // namespace echelon
