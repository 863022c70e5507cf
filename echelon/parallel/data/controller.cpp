#include "echelon/parallel/data/controller.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/median.h"

namespace echelon {
namespace {

constexpr double moved = 1.5;  // a change of the ratio by this factor means that a link has changed
constexpr double worth_it = 0.9;  // of the present prediction
constexpr double far = 3;         // from the prediction by an earlier job's figures

}  // namespace

SyncController::SyncController(std::shared_ptr<Communicator> ranks,
                               std::vector<std::size_t> buckets, std::int64_t every,
                               std::function<void(const std::string&)> say)
    : ranks_(std::move(ranks)), buckets_(std::move(buckets)), every_(every), say_(std::move(say)) {
  // Names the algorithm, so that measuring the links again does not change it implicitly.
  if (!ranks_->algorithms().empty()) algorithm_ = cheapest();
}

double SyncController::predicted(Algorithm algorithm) const {
  double seconds = 0;
  for (const auto bytes : buckets_)
    seconds += ranks_->predicted(Operation::all_reduce, algorithm, bytes);
  return seconds;
}

Algorithm SyncController::cheapest() const {
  const auto all = ranks_->algorithms();
  return *std::min_element(all.begin(), all.end(),
                           [&](Algorithm a, Algorithm b) { return predicted(a) < predicted(b); });
}

Algorithm SyncController::after_step(std::int64_t step, double reducing_seconds) {
  times_.push_back(reducing_seconds);
  if (std::ssize(times_) < every_ || ranks_->algorithms().empty()) return algorithm_;
  // Use the slowest rank's time: the others wait for it.
  const at::Tensor slowest = at::zeros({1}, at::kDouble).fill_(median(times_));
  ranks_->all_reduce(slowest, ReduceOp::max, {.tag = "controller", .blocking = true}).wait();
  times_.clear();
  decide(step, slowest.item<double>());
  return algorithm_;
}

void SyncController::decide(std::int64_t step, double measured) {
  const double expected = predicted(algorithm_);
  if (before_ > 0) {
    say_(fmt::format("step {}: with {} reducing takes {:.2f} ms, {:.2f} ms {} than before", step,
                     name(algorithm_), measured * 1e3, std::abs(before_ - measured) * 1e3,
                     measured <= before_ ? "less" : "more"));
    before_ = 0;
  }
  if (expected <= 0) return;
  const double ratio = measured / expected;
  const bool first = ratio_ == 0;
  if (!first && ratio < moved * ratio_) {
    // A single better interval may be a quiet moment; two in a row are a change.
    if (ratio > ratio_ / moved || !std::exchange(better_, true)) {
      if (ratio > ratio_ / moved) better_ = false;
      return;
    }
  }
  better_ = false;
  const bool outdated = first && ranks_->link_is_reused() && (ratio > far || ratio < 1 / far);
  if (!first || outdated) {
    ranks_->measure_links();
    const auto link = ranks_->link();
    say_(
        fmt::format("step {}: reducing took {:.2f} ms where {:.2f} were expected: the links are "
                    "measured again, alpha {:.1f} us, beta {:.3f} ns a byte",
                    step, measured * 1e3, (first ? 1 : ratio_) * expected * 1e3, link.alpha * 1e6,
                    link.beta * 1e9));
  }
  const Algorithm best = cheapest();
  const double now = predicted(algorithm_), then = predicted(best);
  // Assume that the ratio of measured to predicted time is the same for both algorithms.
  ratio_ = now > 0 ? measured / now : ratio;
  if (best == algorithm_ || then > worth_it * now) return;
  say_(fmt::format(
      "step {}: from {} to {}: reducing takes {:.2f} ms and is predicted to take {:.2f}", step,
      name(algorithm_), name(best), measured * 1e3, ratio_ * then * 1e3));
  algorithm_ = best;
  before_ = measured;
  ratio_ = 0;
  ++switches_;
}

}  // namespace echelon
