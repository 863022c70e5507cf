// The evaluation of a model on a dataset: mean loss and metrics. Trainer::measure and `echelon
// evaluate` share it; they differ in how they compute a batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/train/metric.h"

namespace echelon {

struct Evaluation {
  double loss = 0;           // mean over targets, or over samples that all have equally many
  std::int64_t samples = 0;  // evaluated by all ranks
  Scores scores = {};        // of all metrics
  std::vector<at::Tensor> counts = {};  // by metric
};

using Metrics = std::vector<std::shared_ptr<const Metric>>;
using Observe = std::function<void(const at::Tensor& output, const at::Tensor& target)>;

// One process's part in an evaluation.
struct EvaluationPart {
  std::vector<std::int64_t> samples = {};  // the indices of all processes (evaluation_order)
  std::int64_t at_once = 1;                // samples of a batch
  std::int64_t parts = 1, index = 0;  // processes that share the samples, and which of them this is
  bool sees_outputs = true;  // it has the last layer; otherwise it only takes part in computing
  // A batch of these samples, on the device.
  std::function<Batch(std::span<const std::int64_t> indices)> read = {};
  // The mean loss of a batch; passes the outputs to `observe` if it is set.
  std::function<at::Tensor(const Batch& batch, const Observe& observe)> compute = {};
  // Sums a tensor of doubles over all processes, in place; empty: there is one.
  std::function<void(const at::Tensor& sums)> sum = {};
};

// Throws InvalidArgument, on all processes, if there are metrics and the last layer passed no
// outputs to `observe`.
Evaluation evaluate(const EvaluationPart& part, const Metrics& metrics);

// The samples that a validation of `samples` samples uses. These are the first ones, except where
// samples may be sorted (Dataset::may_be_sorted) and in a mixture: there they are a pseudo-random
// choice, which takes from each part of a mixture in proportion to its weight. The choice depends
// only on sizes and weights, so it is the same in every validation and on every rank.
//
// The longest come first, which needs the least padding and makes a batch that does not fit into
// memory fail at once.
std::vector<std::int64_t> evaluation_order(const Dataset& data, std::int64_t samples);

// The length to which a batch is padded whose longest sample has `length` tokens: a multiple of
// `pad_to`, and at most the dataset's max_length(). 0: samples are alike.
std::int64_t padded_length(const Dataset& data, std::int64_t length, std::int64_t pad_to);
// A number that divides all these lengths. 0: samples are alike.
std::int64_t length_divisor(const Dataset& data, std::int64_t pad_to);

// Samples of a dataset padded to `length` tokens (0: samples are alike), with the number of targets
// of each if they differ. Throws InvalidArgument if a sample has no target and others have some.
Batch padded_batch(const Dataset& data, std::span<const std::int64_t> indices, std::int64_t length);
std::int64_t require_targets(const Dataset& data, std::int64_t index);

// The same, padded to the longest of the samples.
Batch batch_of(const Dataset& data, std::span<const std::int64_t> indices, std::int64_t pad_to);

}  // namespace echelon
