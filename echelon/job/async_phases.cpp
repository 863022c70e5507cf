#include "echelon/job/async_phases.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "echelon/base/error.h"
#include "echelon/base/median.h"
#include "echelon/job/server_job.h"
#include "echelon/plan/rules.h"

namespace echelon {
namespace {

constexpr int intervals_of_a_phase = 20;
constexpr int intervals_to_know = 8;  // before anything is decided

// However a phase ends, the trainer drops its servers before they are destroyed.
struct UsingServers {
  explicit UsingServers(Trainer& of) : trainer(of) {}
  ~UsingServers() {
    try {
      trainer.drop_servers();
    } catch (const std::exception&) {  // the phase's own error is the one to report
    }
  }
  UsingServers(const UsingServers&) = delete;
  UsingServers& operator=(const UsingServers&) = delete;
  Trainer& trainer;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

}  // namespace

AsyncPhases::AsyncPhases(const JobOptions& options, Trainer& trainer, const Stack& stack,
                         std::shared_ptr<Communicator> ranks, std::string bind, const Token& token,
                         std::function<void(const std::string&)> say)
    : options_(options),
      trainer_(trainer),
      stack_(stack),
      ranks_(std::move(ranks)),
      bind_(std::move(bind)),
      token_(token),
      say_(std::move(say)),
      probe_(options.sync.allow_staleness),
      history_(ranks_ ? ranks_->size() : 1, double(options.train.batch)),
      band_(std::size_t(std::max<std::int64_t>(20, 4 * options.sync.every))),
      not_before_(intervals_to_know * options.sync.every),
      pause_(intervals_to_know * options.sync.every) {
  require_can_run(static_cast<const PlanOptions&>(options), ranks_ ? ranks_->size() : 1);
  if (ranks_->rank() != 0) say_ = [](const std::string&) {};
  options_.server.count = ranks_->size();
  options_.server.place = ServerPlace::colocated;
  options_.server.mode = ServerMode::bounded;
  options_.server.staleness = options.sync.allow_staleness;
  options_.server.patience =
      options.comm.timeout;  // the time that ranks of synchronous steps wait for each other
  options_.train.save_every = 0;
  trainer_.probe({.before_reduce = [this](const at::Tensor& part,
                                          double weight) { probe_.share(part, weight); },
                  .before_update = [this](const at::Tensor& grad) { probe_.mean(grad); }});
  trainer_.on_step([this](const StepReport& report) {
    losses_.push_back(report.loss);
    if (in_phase_) return;
    computing_.push_back(report.times.compute);
    steps_.push_back(report.seconds);
    band_.add(report.loss);
  });
}

void AsyncPhases::run_until(std::int64_t until, const std::atomic<bool>* stop) {
  const auto every = options_.sync.every;
  while (trainer_.step() < until) {
    const auto end = std::min(until, (trainer_.step() / every + 1) * every);
    trainer_.run_until(end, stop);
    if (trainer_.step() < end) return;
    if (end % every != 0) continue;
    const auto known = look();
    const auto phase_end = std::min(until, end + intervals_of_a_phase * every);
    if (!known || end < not_before_ || phase_end - end < 2 * every) continue;
    const auto objection = known->objection();
    if (objection) {
      // Logged again if it changes, or after the length of a phase.
      if (*objection != objection_ || end - told_ >= intervals_of_a_phase * every) {
        say_(
            fmt::format("step {}: steps stay synchronous, {}: {}", end, *objection, known->text()));
        objection_ = *objection;
        told_ = end;
      }
      continue;
    }
    objection_.clear();
    say_(fmt::format("step {}: gradients may be {} old until step {}: {}", end,
                     updates_in_words(known->staleness), phase_end, known->text()));
    phase(phase_end, known->cost(), stop);
  }
}

// Combines the measurements of all ranks. Values that should be the same on every rank are taken
// from the first, so that all ranks decide alike despite rounding.
std::optional<StalenessCase> AsyncPhases::look() {
  const auto mine = probe_.take();
  if (steps_.empty()) return {};
  const at::Tensor here = at::tensor({median(computing_), median(steps_), mine.shares, mine.means,
                                      mine.products, mine.steps, mine.pairs},
                                     at::kDouble);
  const auto fields = here.numel();
  const at::Tensor all = at::zeros({fields * ranks_->size()}, at::kDouble);
  ranks_->all_gather(all, here, {.tag = "staleness", .blocking = true}).wait();
  const auto* got = all.const_data_ptr<double>();
  GradientSums sums{0, got[3], got[4], got[5], got[6]};
  std::vector<double> computing;
  double step = 0;
  for (int r = 0; r < ranks_->size(); ++r, got += fields) {
    computing.push_back(got[0]);
    step += got[1] / double(ranks_->size());
    sums.shares += got[2];
  }
  computing_.clear();
  steps_.clear();
  losses_.clear();
  history_.add(sums);
  if (++intervals_ < intervals_to_know || !band_.known()) return {};
  const double slowest = *std::max_element(computing.begin(), computing.end());
  const auto staleness = options_.sync.allow_staleness;
  step_seconds_ = step;
  predicted_ = off_ * stale_seconds(computing, std::max(0.0, step - slowest), staleness);
  return StalenessCase{staleness,        double(options_.train.batch),
                       history_.noise(), step_seconds_,
                       predicted_,       trainer_.step() < options_.optim.warmup};
}

void AsyncPhases::phase(std::int64_t end, double cost, const std::atomic<bool>* stop) {
  ++phases_;
  const auto first = trainer_.step();
  const Outcome outcome = run_phase(end, stop);
  const auto now = trainer_.step();
  probe_.forget();
  // Accounts for what the prediction does not know about this machine.
  off_ *= std::clamp(outcome.seconds / predicted_, 0.5, 2.0);
  const bool gained = step_seconds_ >= StalenessCase::worth_it * cost * outcome.seconds;
  say_(fmt::format(
      "step {}: {} steps with gradients up to {} old took {:.1f} ms each where {:.1f} were "
      "predicted, {:.1f} ms {} than before; {}",
      now, now - first, updates_in_words(options_.sync.allow_staleness), outcome.seconds * 1e3,
      predicted_ * 1e3, std::abs(outcome.seconds - step_seconds_) * 1e3,
      outcome.seconds < step_seconds_ ? "less" : "more",
      outcome.in_band
          ? fmt::format("the loss {:.4f} is in its band{}", outcome.loss,
                        gained ? "" : ", but age may have cost more than that")
          : fmt::format(
                "the mean loss {:.4f} left its band up to {:.4f}: steps are synchronous again",
                outcome.loss, band_.top())));
  if (gained && outcome.in_band) return;
  not_before_ = now + pause_;
  pause_ *= 2;
}

AsyncPhases::Outcome AsyncPhases::run_phase(std::int64_t end, const std::atomic<bool>* stop) {
  const auto began = std::chrono::steady_clock::now();
  const auto first = trainer_.step();
  Outcome outcome;
  in_phase_ = true;
  losses_.clear();
  {
    auto job = ServerJob::async_phase(options_, *ranks_, bind_, token_, end);
    job.attach(trainer_, stack_);
    const UsingServers until_left(trainer_);
    // A server ends when all its workers have left: none may leave before all have connected.
    job.all_have_come();
    const bool watches = ranks_->rank() == 0;  // only rank 0 sees every step
    while (trainer_.step() < end) {
      const auto before = trainer_.step();
      trainer_.run_until(watches ? std::min(end, before + options_.sync.every) : end, stop);
      if (!watches || losses_.empty()) break;
      outcome.loss = mean(losses_);
      if (!(outcome.loss <= band_.top())) {
        outcome.in_band = false;
        trainer_.stop_servers();
        trainer_.run_until(end, stop);
        break;
      }
      for (const double loss : losses_) band_.add(loss);
      losses_.clear();
    }
    trainer_.leave_servers();
    job.wait();
  }
  in_phase_ = false;
  losses_.clear();
  if (!trainer_.failure().empty()) {
    const std::string why =
        fmt::format("{}; the weights are those after step {}", trainer_.failure(), trainer_.step());
    trainer_.tell(FaultReport{trainer_.step(), FaultReport::Kind::not_finite, why});
    throw NotFinite(why);
  }
  outcome.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() /
      double(std::max<std::int64_t>(1, trainer_.step() - first));
  // Rank 0's result counts.
  const at::Tensor told = at::zeros({3}, at::kDouble);
  auto* numbers = told.mutable_data_ptr<double>();
  numbers[0] = outcome.seconds;
  numbers[1] = outcome.loss;
  numbers[2] = outcome.in_band ? 1 : 0;
  ranks_->broadcast(told, 0, {.tag = "staleness", .blocking = true}).wait();
  return {numbers[0], numbers[1], numbers[2] != 0};
}

}  // namespace echelon
