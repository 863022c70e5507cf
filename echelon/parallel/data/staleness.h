// When a job may use gradients that are some updates old: the measured quantities and the condition
// that must hold. docs/switching.md gives the reasons and the sources.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace echelon {

// Sums over steps of quantities measured on every rank's gradients.
struct GradientSums {
  double shares = 0;  // mean over samples of |gradient of the rank's part that the sample is in|²
  double means = 0;   // |mean gradient|²
  double products = 0;  // dot products of mean gradients, `lag` updates apart
  double steps = 0, pairs = 0;

  GradientSums& operator+=(const GradientSums& other);
  GradientSums scaled(double factor) const;
};

// How noisy gradients are and how fast they turn, estimated from sums over steps of `batch` samples
// on `ranks` ranks. The expected square of a mean over b samples is |G|² + tr(S)/b, where G is the
// true gradient and S the covariance of one sample's gradient. Two values of b determine both.
struct GradientNoise {
  double signal = 0;     // |G|²; the estimate may be negative if noise dominates
  double variance = 0;   // tr(S)
  double coherence = 0;  // G now · G `lag` updates ago, over |G|²
  double error = 0;      // standard error of `signal`, if known

  GradientNoise(const GradientSums& sums, int ranks, double batch);
  double scale() const;  // tr(S)/|G|², in samples; infinite if noise dominates |G|
  // Whether the signal exceeds the noise by two standard errors.
  bool certain() const { return signal > 2 * error && signal > 0; }
};

// Measurements over intervals of steps, with exponentially decaying weight.
class NoiseHistory {
 public:
  NoiseHistory(int ranks, double batch) : ranks_(ranks), batch_(batch) {}
  void add(const GradientSums& interval);
  GradientNoise noise() const;

 private:
  int ranks_;
  double batch_;
  GradientSums sums_;
  // Statistics of the per-interval signals: sums of weights, squared weights, values, squared
  // values.
  double weight_ = 0, weight_squares_ = 0, signals_ = 0, signal_squares_ = 0;
};

// Accumulates the sums on one rank, step by step.
class GradientProbe {
 public:
  explicit GradientProbe(std::int64_t lag) : lag_(lag) {}

  // Adds a part of this rank's gradient as it enters the sum over ranks: multiplied by `weight`.
  void share(const at::Tensor& part, double weight);
  void mean(const at::Tensor& gradient);  // the mean over all ranks; ends the step
  void forget() { kept_.reset(); }        // updates were applied that the probe did not see

  // Returns the sums since the last call. `shares` covers only this rank: sum it over all ranks.
  GradientSums take();

 private:
  std::int64_t lag_;
  GradientSums sums_;
  at::Tensor kept_;  // the mean gradient of `age_` updates ago
  std::int64_t age_ = 0;
};

// Decides whether to replace synchronous steps by gradients that are up to `staleness` updates old.
struct StalenessCase {
  std::int64_t staleness = 0;
  double batch = 0;
  GradientNoise noise;
  double step_seconds = 0;   // synchronous, as measured
  double stale_seconds = 0;  // with stale gradients, as predicted
  bool rate_rises = false;   // the learning rate is still warming up

  static constexpr double worth_it = 1.1;  // least ratio of gain to cost

  double gain() const { return step_seconds / stale_seconds; }
  // How many more samples the same progress takes if every gradient is `staleness` updates old: as
  // many as with a batch that is staleness + 1 times larger.
  double cost() const;
  // The first condition that does not hold, in words; nothing if all hold.
  std::optional<std::string> objection() const;
  std::string text() const;  // the numbers behind the decision
};

// The time of a step if parts of the batch go to whichever worker asks next. `compute` is each
// worker's time for one part; `rest` is the remaining time of a step. While the slowest worker
// computes one part, at most staleness + 1 updates pass.
double stale_seconds(const std::vector<double>& compute, double rest, std::int64_t staleness);

std::string updates_in_words(std::int64_t count);  // "1 update", "3 updates"

// The range in which losses are expected: the mean and spread of the losses of the last steps.
class LossBand {
 public:
  explicit LossBand(std::size_t steps) : most_(steps) {}
  void add(double loss);
  bool known() const { return losses_.size() >= most_; }
  double top() const;  // mean + 3 standard deviations of a step's loss

 private:
  std::size_t most_;
  std::deque<double> losses_;
};

}  // namespace echelon
