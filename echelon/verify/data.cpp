#include "echelon/verify/data.h"

#include <algorithm>
#include <limits>

#include "echelon/data/random_sentences.h"
#include "echelon/data/sampler.h"
#include "echelon/models/family.h"

namespace echelon {

std::unique_ptr<const Dataset> data_of(const JobOptions& job) {
  const ModelOptions& model = job.model;
  constexpr std::uint64_t seed = 1;
  switch (task_of(model)) {
    case ModelTask::classify:
      return std::make_unique<RandomSentences>(model.vocab, model.context, seed,
                                               RandomSentences::Goal{.labels = model.task.labels});
    case ModelTask::mlm:
      return std::make_unique<RandomSentences>(model.vocab, model.context, seed,
                                               RandomSentences::Goal{.masked = model.task.mask});
    default:
      return std::make_unique<RandomTokens>(model.vocab, model.context, seed);
  }
}

namespace {

// Calls visit(rows) for each step.
template <class Visit>
void each_step(const JobOptions& job, const Visit& visit) {
  const auto batch = job.train.batch;
  const bool classes = task_of(job.model) == ModelTask::classify;
  const auto data = data_of(job);
  const Sampler sampler(std::uint64_t(job.train.seed), *data, batch);
  for (std::int64_t step = 0; step < job.train.steps; ++step) {
    std::uint64_t rows = 0;
    for (const auto index : sampler.indices(step, 0, batch)) {
      const auto targets = data->targets(index);
      rows += std::uint64_t(targets > 0 ? targets : classes ? 1 : job.model.context);
    }
    visit(rows);
  }
}

}  // namespace

std::uint64_t target_rows(const JobOptions& job) {
  std::uint64_t all = 0;
  each_step(job, [&](std::uint64_t rows) { all += rows; });
  return all;
}

std::uint64_t fewest_target_rows(const JobOptions& job) {
  auto fewest = std::numeric_limits<std::uint64_t>::max();
  each_step(job, [&](std::uint64_t rows) { fewest = std::min(fewest, rows); });
  return fewest;
}

}  // namespace echelon
