// Repeats a run with parameter servers from its log, in one thread and without servers: computes
// every gradient on the version of the parameters and from the batch that the log names. If an
// entry of the log is wrong, the parameters differ from the run's.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "echelon/data/sampler.h"
#include "echelon/job/run_directory.h"
#include "echelon/optim/master_update.h"
#include "echelon/optim/schedule.h"
#include "echelon/parallel/data/batch_split.h"
#include "echelon/step/executor.h"
#include "echelon/train/trainer.h"

namespace echelon {

// A line of metrics.jsonl.
struct LoggedStep {
  std::int64_t step = 0, batch = 0;  // 1-based
  std::vector<std::int64_t> ages;    // by share; empty: of a synchronous step
};

// Writes the reports as a run does, and reads them back.
inline std::vector<LoggedStep> logged(const std::vector<StepReport>& reports,
                                      const std::filesystem::path& folder) {
  RunDirectory run = RunDirectory::create(folder, "replay");
  for (const auto& report : reports) run.add_step(report, false);
  std::vector<LoggedStep> log;
  std::ifstream file(run.path() / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    LoggedStep one{json.at("step"), json.at("step"), {}};
    if (json.contains("ages")) {
      one.ages = json.at("ages").get<std::vector<std::int64_t>>();
      one.batch = json.at("batch");
    }
    log.push_back(std::move(one));
  }
  return log;
}

struct Replayed {
  at::Tensor values;                  // the flat buffer, at the end
  std::vector<double> losses, norms;  // by step
};

// `stack` is the model without initial values; `shares` is the number of shares of a batch.
inline Replayed replay(Stack& stack, const Dataset& data, const TrainOptions& train,
                       OptimOptions optim, int shares, const std::vector<LoggedStep>& log) {
  at::NoGradGuard no_grad;
  optim.rate = peak_rate(optim, train.batch);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  MasterUpdate update(stack, optim);
  update.load(random_values(std::uint64_t(train.seed)));
  const StepShape shape = step_shape(stack, int(train.micro_batches), {});
  Executor executor(stack, nullptr, for_servers(shape), shape);
  executor.seed(std::uint64_t(train.seed));
  const Sampler sampler(std::uint64_t(train.seed), data.size(), train.batch);
  const auto samples = even_split(train.batch, shares);

  Replayed seen;
  std::vector<at::Tensor> versions = {stack.values().clone()};
  for (const auto& step : log) {
    at::Tensor sum = at::zeros_like(stack.grads());
    double loss = 0;
    std::int64_t first = 0;
    for (int j = 0; j < shares; ++j) {
      const auto mine = samples[std::size_t(j)];
      const auto age = step.ages.empty() ? 0 : step.ages[std::size_t(j)];
      at::Tensor(stack.values()).copy_(versions.at(std::size_t(step.step - 1 - age)));
      const Batch batch = data.get(sampler.indices(step.batch - 1, first, first + mine));
      executor.step().fill_(step.batch - 1);
      loss += executor.run(batch, double(mine) / double(train.batch), first).item<double>();
      sum += stack.grads();
      first += mine;
    }
    at::Tensor(stack.values()).copy_(versions.back());
    at::Tensor(stack.grads()).copy_(sum);
    update.rate().fill_(rate_at(optim, step.step - 1, train.steps));
    update.apply(at::zeros_like(update.norm()));
    versions.push_back(stack.values().clone());
    seen.losses.push_back(loss);
    seen.norms.push_back(update.norm().item<double>());
  }
  seen.values = versions.back();
  return seen;
}

}  // namespace echelon
