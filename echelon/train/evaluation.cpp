#include "echelon/train/evaluation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/random.h"

namespace echelon {
namespace {

// How many of `samples` samples come from each part: in proportion to its weight, by the method of
// Sainte-Laguë. Once all samples of a part are taken, the other parts give the rest.
std::vector<std::int64_t> samples_by_part(const std::vector<Dataset::Part>& parts,
                                          std::int64_t samples) {
  std::vector<std::int64_t> taken(parts.size());
  const auto quotient = [&](std::size_t p) {
    return taken[p] < parts[p].samples
               ? static_cast<double>(2 * taken[p] + 1) / static_cast<double>(parts[p].weight)
               : std::numeric_limits<double>::infinity();
  };
  for (std::int64_t i = 0; i < samples; ++i) {
    std::size_t next = 0;
    for (std::size_t p = 1; p < parts.size(); ++p)
      if (quotient(p) < quotient(next)) next = p;
    ++taken[next];
  }
  return taken;
}

std::vector<std::int64_t> random_choice(const std::vector<Dataset::Part>& parts,
                                        std::int64_t samples) {
  const Key key = derive_key(0, "samples of a validation");
  const auto counts = samples_by_part(parts, samples);
  std::vector<std::int64_t> chosen;
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (std::int64_t i = 0; i < counts[p]; ++i)
      chosen.push_back(parts[p].first + std::int64_t(permute(key, std::uint64_t(i),
                                                             std::uint64_t(parts[p].samples))));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// In ascending order, in which files are read fastest.
std::vector<std::int64_t> samples_to_evaluate(const Dataset& data, std::int64_t samples) {
  auto parts = data.parts();
  if (parts.empty() && data.may_be_sorted()) parts.push_back({.samples = data.size()});
  if (samples < data.size() && !parts.empty()) return random_choice(parts, samples);
  std::vector<std::int64_t> first(std::size_t(std::min(samples, data.size())));
  std::iota(first.begin(), first.end(), 0);
  return first;
}

}  // namespace

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
  std::vector<at::Tensor> all = {loss.reshape({1}).cpu(),
                                 at::zeros({1}, at::kDouble).fill_(weights)};
  if (!metrics.empty())  // batches whose outputs no metric saw
    all.push_back(at::zeros({1}, at::kDouble).fill_(observed ? 0 : batches));
  for (const auto& counts : result.counts) all.push_back(counts.reshape({-1}));
  const at::Tensor sums = at::cat(all);
  if (part.sum) part.sum(sums);
  result.loss = sums[0].item<double>() / sums[1].item<double>();
  if (metrics.empty()) return result;
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
  auto order = samples_to_evaluate(data, samples);
  if (order.empty() || data.length(0) == 0) return order;
  std::vector<std::pair<std::int64_t, std::int64_t>> with_length;  // length and index
  with_length.reserve(order.size());
  for (const auto i : order) with_length.emplace_back(data.length(i), i);
  std::stable_sort(with_length.begin(), with_length.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::transform(with_length.begin(), with_length.end(), order.begin(),
                 [](const auto& one) { return one.second; });
  return order;
}

std::int64_t padded_length(const Dataset& data, std::int64_t length, std::int64_t pad_to) {
  const auto rounded = (length + pad_to - 1) / pad_to * pad_to, most = data.max_length();
  return most > 0 ? std::min(rounded, most) : rounded;
}

std::int64_t length_divisor(const Dataset& data, std::int64_t pad_to) {
  const bool alike = data.size() < 1 || data.length(0) == 0;
  return alike ? 0 : std::gcd(pad_to, data.max_length());
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
