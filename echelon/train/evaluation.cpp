#include "echelon/train/evaluation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "echelon/base/error.h"

namespace echelon {

Evaluation evaluate(const EvaluationPart& part, const Metrics& metrics) {
  const std::int64_t samples = std::ssize(part.samples);
  Evaluation result{.samples = samples};
  for (const auto& metric : metrics) result.counts.push_back(metric->none());
  bool observed = false;
  const Observe count = [&](const at::Tensor& output, const at::Tensor& target) {
    observed = true;
    for (std::size_t i = 0; i < metrics.size(); ++i)
      metrics[i]->add(result.counts[i], output, target);
  };
  const Observe ignore = [](const at::Tensor&, const at::Tensor&) {};

  at::Tensor loss;  // weighted sum
  double weights = 0, batches = 0;
  for (std::int64_t at = 0; at < samples; at += part.at_once * part.parts) {
    const auto first = std::min(samples, at + part.index * part.at_once),
               end = std::min(samples, first + part.at_once);
    // A process with nothing left computes a sample that does not count, because the others may
    // need its slices of the model.
    const bool counts = end > first;
    const auto indices =
        std::span(part.samples)
            .subspan(std::size_t(counts ? first : 0), std::size_t(counts ? end - first : 1));
    const Batch batch = part.read(indices);
    const double weight = !counts                   ? 0
                          : batch.targets.defined() ? batch.targets.sum().item<double>()
                                                    : static_cast<double>(indices.size());
    const at::Tensor mean = part.compute(batch, metrics.empty() ? Observe()
                                                : counts        ? count
                                                                : ignore);
    if (!loss.defined()) loss = at::zeros({}, mean.options().dtype(at::kDouble));
    loss.add_(mean, weight);
    if (part.sees_outputs) weights += weight;
    if (part.sees_outputs && counts) ++batches;
  }

  // One exchange for everything. Datasets of different ranks may be allowed to differ in size.
  const double unobserved = metrics.empty() || observed ? 0 : batches;
  std::vector<at::Tensor> all = {loss.reshape({1}).cpu(),
                                 at::zeros({1}, at::kDouble).fill_(weights),
                                 at::zeros({1}, at::kDouble).fill_(unobserved)};
  for (const auto& counts : result.counts) all.push_back(counts.reshape({-1}));
  const at::Tensor sums = at::cat(all);
  if (part.sum) part.sum(sums);
  result.loss = sums[0].item<double>() / sums[1].item<double>();
  if (sums[2].item<double>() > 0)
    throw InvalidArgument(
        "metrics need the model's outputs, and its last layer passes none to them: let its forward "
        "call pass.observe(outputs, pass.target) if it is set, or add no metric");
  std::int64_t begin = 3;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    at::Tensor& counts = result.counts[i];
    counts.copy_(sums.narrow(0, begin, counts.numel()).view(counts.sizes()));
    begin += counts.numel();
    for (auto& score : metrics[i]->scores(counts)) result.scores.push_back(std::move(score));
  }
  return result;
}

std::vector<std::int64_t> evaluation_order(const Dataset& data, std::int64_t samples) {
  std::vector<std::int64_t> order(std::size_t(std::min(samples, data.size())));
  std::iota(order.begin(), order.end(), 0);
  if (order.empty() || data.length(0) == 0) return order;
  std::vector<std::int64_t> lengths;
  for (const auto i : order) lengths.push_back(data.length(i));
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return lengths[std::size_t(a)] > lengths[std::size_t(b)];
  });
  return order;
}

std::int64_t padded_length(const Dataset& data, std::int64_t length, std::int64_t pad_to) {
  const auto rounded = (length + pad_to - 1) / pad_to * pad_to, most = data.max_length();
  return most > 0 ? std::min(rounded, most) : rounded;
}

// A sample without a target has no mean loss, and would make that of its micro-batch 0 / 0.
std::int64_t require_targets(const Dataset& data, std::int64_t index) {
  const auto targets = data.targets(index);
  if (targets < 1)
    throw InvalidArgument(fmt::format(
        "sample {} of the dataset has {} targets and others have some: leave out samples "
        "without a target",
        index, targets));
  return targets;
}

Batch padded_batch(const Dataset& data, std::span<const std::int64_t> indices,
                   std::int64_t length) {
  Batch batch = length > 0 ? data.get_padded(indices, length) : data.get(indices);
  if (indices.empty() || data.targets(indices.front()) == 0) return batch;
  batch.targets = at::empty({std::int64_t(indices.size())}, at::kDouble);
  std::transform(indices.begin(), indices.end(), batch.targets.data_ptr<double>(),
                 [&](std::int64_t i) { return static_cast<double>(require_targets(data, i)); });
  return batch;
}

Batch batch_of(const Dataset& data, std::span<const std::int64_t> indices, std::int64_t pad_to) {
  std::int64_t longest = 0;
  for (const auto i : indices) longest = std::max(longest, data.length(i));
  return padded_batch(data, indices, padded_length(data, longest, pad_to));
}

}  // namespace echelon
