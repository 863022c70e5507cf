#include "echelon/train/evaluation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "echelon/base/error.h"

namespace echelon {

Evaluation evaluate(const EvaluationPart& part, const Metrics& metrics) {
  Evaluation result{.samples = part.samples};
  for (const auto& metric : metrics) result.counts.push_back(metric->none());
  const Observe count = [&](const at::Tensor& output, const at::Tensor& target) {
    for (std::size_t i = 0; i < metrics.size(); ++i)
      metrics[i]->add(result.counts[i], output, target);
  };
  const Observe ignore = [](const at::Tensor&, const at::Tensor&) {};

  at::Tensor loss;    // weighted sum
  double weights = 0;
  for (std::int64_t at = 0; at < part.samples; at += part.at_once * part.parts) {
    const auto first = std::min(part.samples, at + part.index * part.at_once),
               end = std::min(part.samples, first + part.at_once);
    // A process with nothing left computes a sample that does not count, because the others may
    // need its slices of the model.
    const bool counts = end > first;
    std::vector<std::int64_t> indices(std::size_t(counts ? end - first : 1));
    std::iota(indices.begin(), indices.end(), counts ? first : 0);
    const Batch batch = part.read(indices);
    const double weight = !counts                  ? 0
                          : batch.targets.defined() ? batch.targets.sum().item<double>()
                                                    : static_cast<double>(indices.size());
    const at::Tensor mean =
        part.compute(batch, metrics.empty() ? Observe() : counts ? count : ignore);
    if (!loss.defined()) loss = at::zeros({}, mean.options().dtype(at::kDouble));
    loss.add_(mean, weight);
    if (part.sees_outputs) weights += weight;
  }

  // One exchange for everything. Datasets of different ranks may be allowed to differ in size.
  std::vector<at::Tensor> all = {loss.reshape({1}).cpu(), at::zeros({1}, at::kDouble).fill_(weights)};
  for (const auto& counts : result.counts) all.push_back(counts.reshape({-1}));
  const at::Tensor sums = at::cat(all);
  if (part.sum) part.sum(sums);
  result.loss = sums[0].item<double>() / sums[1].item<double>();
  std::int64_t begin = 2;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    at::Tensor& counts = result.counts[i];
    counts.copy_(sums.narrow(0, begin, counts.numel()).view(counts.sizes()));
    begin += counts.numel();
    for (auto& score : metrics[i]->scores(counts)) result.scores.push_back(std::move(score));
  }
  return result;
}

}  // namespace echelon
