// Shared by tests of several ways to train: a little data, a job on it, its result, and a model's
// parameters.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/split_plan.h"
#include "echelon/train/trainer.h"

namespace echelon {

// Data: 60 sequences of 8 tokens below 32, and the next token of each.
inline const TensorDataset& tokens() {
  static const TensorDataset data = [] {  // once: torch's generator is global
    at::manual_seed(3);
    const at::Tensor text = at::randint(32, {60, 9});
    return TensorDataset(text.narrow(1, 0, 8).contiguous(), text.narrow(1, 1, 8).contiguous());
  }();
  return data;
}

// All parameters, concatenated. If they are sharded, every rank calls it.
inline at::Tensor all_parameters(Stack& stack, Trainer& trainer) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : stack.parameters())
    all.push_back(trainer.master(parameter).reshape({-1}).clone());
  return at::cat(all);
}

// In fp64; ranks check after every step that they still agree.
inline PlanOptions tiny_options(OptimizerKind optimizer = OptimizerKind::adamw, double clip = 1,
                                std::int64_t micro_batches = 1) {
  PlanOptions job;
  job.train.steps = 5;
  job.train.batch = 24;
  job.train.micro_batches = micro_batches;
  job.train.precision = Precision::fp64;
  job.train.check_every = 1;
  job.optim.name = optimizer;
  job.optim.clip = clip;
  job.optim.warmup = 2;
  if (optimizer == OptimizerKind::lars) job.optim.rate = 5;  // multiplied by optim.trust
  return job;
}

// Trains on the tokens above. One process (null) ignores the options for ranks.
inline std::unique_ptr<Trainer> tiny_trainer(const PlanOptions& job, Stack& stack,
                                             std::shared_ptr<Communicator> ranks) {
  const bool alone = !ranks;
  return std::make_unique<Trainer>(
      stack, tokens(),
      TrainerOptions{.train = job.train,
                     .optim = job.optim,
                     .parallel = alone ? ParallelOptions{} : job.parallel,
                     .zero = alone ? ZeroOptions{} : job.zero,
                     .pipeline = job.pipeline,
                     .split = gpt_plan(job.model)},
      std::move(ranks));
}

struct TinyRun {
  at::Tensor parameters;
  std::vector<StepReport> reports;
  double validation = 0;
};

inline TinyRun tiny_run(const PlanOptions& job, std::shared_ptr<Communicator> ranks) {
  Stack stack = gpt(job.model);
  TinyRun run;
  const auto trainer = tiny_trainer(job, stack, std::move(ranks));
  trainer->on_step([&](const StepReport& report) { run.reports.push_back(report); });
  trainer->run();
  run.parameters = all_parameters(stack, *trainer);
  run.validation = trainer->evaluate(tokens(), 20);
  return run;
}

inline void expect_same_run(const TinyRun& seen, const TinyRun& expected, double bound) {
  EXPECT_LT((seen.parameters - expected.parameters).abs().max().item<double>(), bound);
  ASSERT_EQ(seen.reports.size(), expected.reports.size());
  for (std::size_t i = 0; i < seen.reports.size(); ++i) {
    EXPECT_NEAR(seen.reports[i].loss, expected.reports[i].loss, bound) << "step " << i;
    EXPECT_NEAR(seen.reports[i].grad_norm, expected.reports[i].grad_norm, bound) << "step " << i;
  }
  EXPECT_NEAR(seen.validation, expected.validation, bound);
}

}  // namespace echelon
