// Scores about what a model says, beside its loss: accuracy, F1, Matthews correlation.
//
//   trainer.add_metric(classification_metric(2));
//   const Evaluation seen = trainer.measure(data, data.size());   // seen.scores: accuracy, f1, …
//
// A metric counts something over rows of outputs and targets and turns the counts into scores.
// Counts are sums, over batches and over the ranks that share the samples, so any number of ranks
// gives the same scores. A metric of your own derives from Metric; docs/embedding.md has one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace echelon {

using Scores = std::vector<std::pair<std::string, double>>;

// Null if there is no score of this name.
const double* find_score(const Scores& scores, std::string_view name);

class Metric {
 public:
  virtual ~Metric() = default;

  // The counts before the first row: zeros of type double, of any shape.
  virtual at::Tensor none() const = 0;
  // Adds some rows to the counts. `output` is what the last layer compares with `target`: for a
  // batch_loss_layer that gets several tensors, the first of them. For the heads of our models
  // these are logits [rows, classes] and labels or tokens [rows]; a row whose target is -100 has
  // none and does not count. The tensors are on the model's device, the counts on the CPU.
  virtual void add(at::Tensor counts, const at::Tensor& output, const at::Tensor& target) const = 0;
  virtual Scores scores(const at::Tensor& counts) const = 0;
  // Whether a model with more of this score is better. Of an error, override it with false.
  virtual bool more_is_better(std::string_view /*score*/) const { return true; }
};

// Counts [labels, labels]: how many samples of label i (row) the model gave label j (column).
//
//   accuracy   share of samples with the right label
//   f1         of two labels: 2 TP / (2 TP + FP + FN) of label 1; of more: the mean over the labels
//              that occur among the targets or the answers (scikit-learn's average="macro")
//   precision, recall   TP / (TP + FP) and TP / (TP + FN), likewise
//   matthews   correlation between labels and answers (Gorodkin, 2004; two labels: Matthews, 1975)
//
// A quotient of zeros is 0.
std::shared_ptr<const Metric> classification_metric(std::int64_t labels);

// The share of tokens for which the right one is the likeliest, as "accuracy".
std::shared_ptr<const Metric> token_metric();

}  // namespace echelon
