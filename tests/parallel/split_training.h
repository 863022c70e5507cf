// A small GPT whose matrix products are split over ranks, trained for a few steps: the result of
// one process, and the combined result of the ranks.
#pragma once

#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/split_plan.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/step/executor.h"
#include "tests/nn/close.h"
#include "tests/optim/plain_sgd.h"

namespace echelon::split_training {

constexpr int blocks = 2, layers = blocks + 2, micro_batches = 2, steps = 2;
constexpr std::int64_t width = 24, heads = 12, tokens = 6;

inline ModelOptions sizes() {
  return {.layers = blocks, .width = width, .heads = heads, .vocab = 37, .context = tokens + 1};
}

struct Case {
  ModelOptions model = sizes();
  bool sequence = false;
  bool defer_weight_grads = false;
  std::int64_t samples = 8;
};

inline std::string text(const Case& c, int ranks) {
  return fmt::format("{} ranks{}{}, {}, dropout {}, recompute {}, vocabulary {}, {} samples", ranks,
                     c.sequence ? ", sequence" : "", c.defer_weight_grads ? ", weights later" : "",
                     c.model.tied ? "tied" : "untied", c.model.dropout, name_of(c.model.recompute),
                     c.model.vocab, c.samples);
}

inline std::vector<Batch> batches_of(std::int64_t samples, std::int64_t vocab) {
  at::manual_seed(1);
  const auto ids = [&] { return at::randint(vocab, {samples, tokens}, at::kLong); };
  std::vector<Batch> all;
  for (int i = 0; i < steps; ++i) all.push_back({ids(), ids()});
  return all;
}

// All gradients of inputs first, then all gradients of weights.
inline Table with_deferred_weight_grads(const Table& table) {
  Table changed;
  std::vector<Action> later;
  for (Action action : table) {
    if (action.kind == Action::Kind::backward) {
      action.kind = Action::Kind::input;
      later.push_back({Action::Kind::weight, action.layer, action.micro_batch});
    } else if (action.kind == Action::Kind::update) {
      changed.insert(changed.end(), later.begin(), later.end());
    }
    changed.push_back(action);
  }
  return changed;
}

using Values = std::map<std::string, at::Tensor>;
struct Trained {
  std::vector<double> losses;
  Values values;  // this rank's parts
  std::map<std::string, Split> splits;
};

// Two stages of two layers each, and the ranks of other stages with the same parts.
struct Stages {
  std::shared_ptr<Communicator> ranks;
  PipelineOrder schedule;
};

// A few steps of one process, or of a rank that has parts of all layers or of its stage's layers.
inline Trained trained(const Case& c, const std::vector<Batch>& batches,
                       const std::shared_ptr<Communicator>& ranks = nullptr,
                       const Stages& stages = {}) {
  Stack stack = gpt(c.model);
  StepShape shape{.layers = layers, .micro_batches = micro_batches};
  shape.recompute = stack.runs_again();
  Table table = one_process(shape);
  if (c.defer_weight_grads) table = with_deferred_weight_grads(table);
  Neighbours neighbours;
  if (stages.ranks) {
    const PipelineShape pipeline{.ranks = 2, .micro_batches = micro_batches};
    const std::vector<StageLayers> cut = {{0, layers / 2}, {layers / 2, layers}};
    neighbours = {stages.ranks, layer_owners(cut, pipeline)};
    for (const int owner : neighbours.owner) shape.own.push_back(owner == stages.ranks->rank());
    stack.keep(shape.own);
    shape.tied = !stack.tied_across().empty();
    table = pipeline_table(make_schedule(stages.schedule, pipeline), pipeline, stages.ranks->rank(),
                           cut, shape);
    table.push_back({Action::Kind::synchronize});
    if (shape.tied) table.push_back({Action::Kind::tie});
    table.push_back({Action::Kind::update});
  }
  apply(gpt_plan(c.model), stack, ranks, c.sequence);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  MasterUpdate update(stack, plain_sgd());
  update.load(random_values(1));
  Executor executor(stack, &update, table, shape, {.neighbours = neighbours});
  executor.seed(5);
  Trained result;
  for (const Batch& batch : batches) {
    update.rate().fill_(0.5);
    executor.step().add_(1);
    result.losses.push_back(executor.run(batch, 1, /*first_sample=*/3).item<double>());
  }
  for (const auto& parameter : stack.parameters()) {
    if (!parameter.here) continue;
    result.values[parameter.name] = parameter.value.clone();
    result.splits[parameter.name] = parameter.split;
  }
  return result;
}

// All ranks' parts put together. Whole parameters must be bitwise equal on all ranks.
inline Values assembled(const std::vector<Trained>& ranks) {
  Values all;
  for (const auto& [name, split] : ranks.front().splits) {
    std::vector<at::Tensor> parts;
    for (const auto& rank : ranks) parts.push_back(rank.values.at(name));
    if (!split.is_part()) {
      for (const auto& part : parts) EXPECT_TRUE(at::equal(part, parts.front())) << name;
    }
    all[name] = assemble(parts, split);
  }
  return all;
}

}  // namespace echelon::split_training
