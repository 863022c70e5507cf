#include "echelon/parallel/data/staleness.h"

#include <ATen/ops/dot.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace echelon {
namespace {

constexpr double least_coherence = 0.5;  // a gradient this old still points half the way
constexpr double memory = 0.9;           // weight that remains of the history after each interval
constexpr std::int64_t block = 1 << 16;  // elements whose products are summed in single precision

double product(const at::Tensor& a, const at::Tensor& b) {
  const auto wide = [](const at::Tensor& t) {
    return t.element_size() < 4 ? t.to(at::kFloat) : t;  // sums of bf16 are too coarse
  };
  double sum = 0;
  for (std::int64_t at = 0; at < a.numel(); at += block) {
    const auto size = std::min(block, a.numel() - at);
    sum += at::dot(wide(a.narrow(0, at, size)), wide(b.narrow(0, at, size))).item<double>();
  }
  return sum;
}

}  // namespace

GradientSums& GradientSums::operator+=(const GradientSums& other) {
  shares += other.shares;
  means += other.means;
  products += other.products;
  steps += other.steps;
  pairs += other.pairs;
  return *this;
}

GradientSums GradientSums::scaled(double factor) const {
  return {shares * factor, means * factor, products * factor, steps * factor, pairs * factor};
}

// E shares = |G|² + ranks tr(S)/batch and E means = |G|² + tr(S)/batch. This also holds for uneven
// parts: a rank with b samples has weight b/batch, and the square of its gradient is tr(S)/b
// larger.
GradientNoise::GradientNoise(const GradientSums& sums, int ranks, double batch) {
  if (sums.steps == 0 || ranks < 2) return;
  const double shares = sums.shares / sums.steps, means = sums.means / sums.steps;
  variance = (shares - means) * batch / (ranks - 1);
  signal = (ranks * means - shares) / (ranks - 1);
  if (signal > 0 && sums.pairs > 0) coherence = sums.products / sums.pairs / signal;
}

void NoiseHistory::add(const GradientSums& interval) {
  if (interval.steps == 0) return;
  const double signal = GradientNoise(interval, ranks_, batch_).signal;
  sums_ = sums_.scaled(memory) += interval;
  weight_ = memory * weight_ + 1;
  weight_squares_ = memory * memory * weight_squares_ + 1;
  signals_ = memory * signals_ + signal;
  signal_squares_ = memory * signal_squares_ + signal * signal;
}

GradientNoise NoiseHistory::noise() const {
  GradientNoise noise(sums_, ranks_, batch_);
  const double intervals = weight_ * weight_ / std::max(1.0, weight_squares_);  // effective
  const double mean = signals_ / std::max(1.0, weight_);
  const double scatter = std::max(0.0, signal_squares_ / std::max(1.0, weight_) - mean * mean);
  noise.error = intervals > 1 ? std::sqrt(scatter / (intervals - 1))
                              : std::numeric_limits<double>::infinity();
  return noise;
}

double GradientNoise::scale() const {
  return signal > 0 ? variance / signal : std::numeric_limits<double>::infinity();
}

void GradientProbe::share(const at::Tensor& part, double weight) {
  sums_.shares += product(part, part) / weight;
}

void GradientProbe::mean(const at::Tensor& gradient) {
  sums_.means += product(gradient, gradient);
  ++sums_.steps;
  if (kept_.defined() && ++age_ < lag_) return;
  if (kept_.defined()) {
    sums_.products += product(gradient, kept_);
    ++sums_.pairs;
    kept_.copy_(gradient);
  } else {
    kept_ = gradient.clone();
  }
  age_ = 0;
}

GradientSums GradientProbe::take() { return std::exchange(sums_, {}); }

double StalenessCase::cost() const {
  const double part = batch / noise.scale();
  return (1 + double(staleness + 1) * part) / (1 + part);
}

std::optional<std::string> StalenessCase::objection() const {
  if (rate_rises) return "the rate still rises";
  if (!noise.certain()) return "noise covers the gradient, and how fast it turns";
  if (noise.coherence < least_coherence)
    return fmt::format("gradients turn within {}", updates_in_words(staleness));
  if (gain() < worth_it * cost()) return "it would not pay";
  return {};
}

std::string StalenessCase::text() const {
  return fmt::format(
      "a step takes {:.1f} ms and is predicted to take {:.1f}, {:.2f}x as fast, for up to {:.2f}x the "
      "samples; gradients {} apart agree to {:.2f}, their noise scale is {:.1f} samples",
      step_seconds * 1e3, stale_seconds * 1e3, gain(), cost(), updates_in_words(staleness),
      noise.coherence, noise.scale());
}

std::string updates_in_words(std::int64_t count) {
  return fmt::format("{} update{}", count, count == 1 ? "" : "s");
}

double stale_seconds(const std::vector<double>& compute, double rest, std::int64_t staleness) {
  double a_second = 0, slowest = 0;  // parts per second of all workers; the slowest worker's time
  for (const double seconds : compute) {
    a_second += 1 / (seconds + rest);
    slowest = std::max(slowest, seconds + rest);
  }
  return std::max(double(compute.size()) / a_second, slowest / double(staleness + 1));
}

void LossBand::add(double loss) {
  losses_.push_back(loss);
  if (losses_.size() > most_) losses_.pop_front();
}

double LossBand::top() const {
  const double count = double(losses_.size());
  const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) / count;
  double squares = 0;
  for (const double loss : losses_) squares += (loss - mean) * (loss - mean);
  return mean + 3 * std::sqrt(squares / std::max(1.0, count - 1));
}

}  // namespace echelon
