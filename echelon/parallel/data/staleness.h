// When a job's gradients may be some updates old: what is measured of them, and the condition that
// must hold. docs/switching.md has the reasons and the sources.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace echelon {

// Sums over steps, of numbers that every rank's gradients give.
struct GradientSums {
  double shares = 0;    // the mean over samples of |gradient of the share it is in|²
  double means = 0;     // |mean gradient|²
  double products = 0;  // of mean gradients, `lag` updates apart
  double steps = 0, pairs = 0;

  GradientSums& operator+=(const GradientSums& other);
  GradientSums scaled(double factor) const;
};

// How noisy gradients are and how fast they turn, from sums over steps of `batch` samples on
// `ranks` ranks. The expected square of a mean over b samples is |G|² + tr(S)/b, G being the true
// gradient and S the covariance of a sample's: two sizes of b give both.
struct GradientNoise {
  double signal = 0;     // |G|²; may come out negative where noise covers it
  double variance = 0;   // tr(S)
  double coherence = 0;  // G now · G `lag` updates ago, over |G|²
  double error = 0;      // standard error of `signal`, where it is known

  GradientNoise(const GradientSums& sums, int ranks, double batch);
  double scale() const;  // tr(S)/|G|², in samples; infinite where noise covers |G|
  // Whether there is a gradient beneath the noise, by two standard errors.
  bool certain() const { return signal > 2 * error && signal > 0; }
};

// What intervals of steps gave, older ones counting less and less.
class NoiseHistory {
 public:
  NoiseHistory(int ranks, double batch) : ranks_(ranks), batch_(batch) {}
  void add(const GradientSums& interval);
  GradientNoise noise() const;

 private:
  int ranks_;
  double batch_;
  GradientSums sums_;
  // Of the signals that single intervals gave: weights, their squares, sum, sum of squares.
  double weight_ = 0, weight_squares_ = 0, signals_ = 0, signal_squares_ = 0;
};

// Takes the sums on one rank, step by step.
class GradientProbe {
 public:
  explicit GradientProbe(std::int64_t lag) : lag_(lag) {}

  // A part of this rank's gradient, as it goes into the sum over ranks: times `weight`.
  void share(const at::Tensor& part, double weight);
  void mean(const at::Tensor& gradient);  // of all ranks; ends the step
  void forget() { kept_.reset(); }        // updates were applied that it did not see

  // Since the last call. `shares` is this rank's part of it: add up those of all ranks.
  GradientSums take();

 private:
  std::int64_t lag_;
  GradientSums sums_;
  at::Tensor kept_;  // the mean gradient of `age_` updates ago
  std::int64_t age_ = 0;
};

// Whether synchronous steps should give way to gradients that are up to `staleness` updates old.
struct StalenessCase {
  std::int64_t staleness = 0;
  double batch = 0;
  GradientNoise noise;
  double step_seconds = 0;   // as it is
  double stale_seconds = 0;  // as predicted
  bool rate_rises = false;   // it still warms up

  static constexpr double worth_it = 1.1;  // gain over cost

  double gain() const { return step_seconds / stale_seconds; }
  // How many more samples the same progress takes, if every gradient is so old: as many as with a
  // batch that is staleness + 1 times larger.
  double cost() const;
  // Nothing where all holds; otherwise what does not, in words.
  std::optional<std::string> objection() const;
  std::string text() const;  // the numbers
};

// What a step takes if shares go to whichever worker asks next: `compute` is what each takes for a
// share, `rest` what a step takes beside. While the slowest is at a share, at most staleness + 1
// updates pass.
double stale_seconds(const std::vector<double>& compute, double rest, std::int64_t staleness);

std::string updates_in_words(std::int64_t count);  // "1 update", "3 updates"

// Where losses are expected: those of the last steps, their mean and how much they scatter.
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
