#include "echelon/train/metric.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "echelon/base/error.h"

namespace echelon {
namespace {

double quotient(double above, double below) { return below == 0 ? 0 : above / below; }

// The rows that have a target: answers and targets.
std::pair<at::Tensor, at::Tensor> answers(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor goal = target.reshape({-1});
  if (output.dim() < 2 || output.numel() / output.size(-1) != goal.numel())
    throw InvalidArgument(fmt::format(
        "this metric compares rows of logits with one target each; the model gives [{}] "
        "for targets of [{}]",
        fmt::join(output.sizes(), ", "), fmt::join(target.sizes(), ", ")));
  const at::Tensor answer = output.reshape({goal.numel(), -1}).argmax(1),
                   counted = goal.ge(0).nonzero().squeeze(1);
  return {answer.index_select(0, counted).cpu(), goal.index_select(0, counted).cpu()};
}

class Classification : public Metric {
 public:
  explicit Classification(std::int64_t labels) : labels_(labels) {}

  at::Tensor none() const override { return at::zeros({labels_, labels_}, at::kDouble); }

  void add(at::Tensor counts, const at::Tensor& output, const at::Tensor& target) const override {
    const auto [answer, goal] = answers(output, target);
    if (answer.numel() == 0) return;
    const auto outside = [&](const at::Tensor& some) {
      return some.max().item<std::int64_t>() >= labels_;
    };
    if (outside(answer) || outside(goal))
      throw InvalidArgument(fmt::format(
          "a metric of {} labels got label {}", labels_,
          std::max(answer.max().item<std::int64_t>(), goal.max().item<std::int64_t>())));
    counts.add_((goal * labels_ + answer).bincount({}, labels_ * labels_).view({labels_, labels_}));
  }

  Scores scores(const at::Tensor& counts) const override {
    const auto c = counts.accessor<double, 2>();
    double right = 0, all = 0, told_and_true = 0, told_squares = 0, true_squares = 0;
    double precision = 0, recall = 0, f1 = 0, averaged = 0;
    // Of two labels, the second one is asked for: it is the positive one.
    const std::int64_t first = labels_ == 2 ? 1 : 0;
    for (std::int64_t k = 0; k < labels_; ++k) {
      double truly = 0, told = 0;
      for (std::int64_t j = 0; j < labels_; ++j) {
        truly += c[k][j];
        told += c[j][k];
      }
      right += c[k][k];
      all += truly;
      told_and_true += told * truly;
      told_squares += told * told;
      true_squares += truly * truly;
      // A label that occurs nowhere has no F1: scikit-learn's "macro" leaves it out as well.
      if (k < first || truly + told == 0) continue;
      ++averaged;
      precision += quotient(c[k][k], told);
      recall += quotient(c[k][k], truly);
      f1 += quotient(2 * c[k][k], told + truly);
    }
    const double matthews =
        quotient(right * all - told_and_true,
                 std::sqrt(all * all - told_squares) * std::sqrt(all * all - true_squares));
    return {{"accuracy", quotient(right, all)},
            {"f1", quotient(f1, averaged)},
            {"matthews", matthews},
            {"precision", quotient(precision, averaged)},
            {"recall", quotient(recall, averaged)}};
  }

 private:
  std::int64_t labels_;
};

class Tokens : public Metric {
 public:
  at::Tensor none() const override { return at::zeros({2}, at::kDouble); }  // right, all

  void add(at::Tensor counts, const at::Tensor& output, const at::Tensor& target) const override {
    const auto [answer, goal] = answers(output, target);
    counts[0].add_(answer.eq(goal).sum());
    counts[1].add_(goal.numel());
  }

  Scores scores(const at::Tensor& counts) const override {
    return {{"accuracy", quotient(counts[0].item<double>(), counts[1].item<double>())}};
  }
};

}  // namespace

const double* find_score(const Scores& scores, std::string_view name) {
  const auto found = std::find_if(scores.begin(), scores.end(),
                                  [&](const auto& score) { return score.first == name; });
  return found == scores.end() ? nullptr : &found->second;
}

std::shared_ptr<const Metric> classification_metric(std::int64_t labels) {
  if (labels < 2)
    throw InvalidArgument(fmt::format("a classification has 2 labels or more, not {}", labels));
  return std::make_shared<Classification>(labels);
}

std::shared_ptr<const Metric> token_metric() { return std::make_shared<Tokens>(); }

}  // namespace echelon
