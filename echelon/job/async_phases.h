// Runs a trainer of several ranks with asynchronous phases, in which gradients may be some updates
// old, where that pays (sync.allow_staleness).
//
//   AsyncPhases phases(options, trainer, stack, ranks, bind, token, say);
//   phases.run_until(until, &stop);  // instead of trainer.run_until
//
// All ranks make the same calls. Every sync.every steps they combine their measurements
// (parallel/data/staleness.h). If the condition holds, every rank starts a parameter server, and
// the next steps run in bounded mode. Then the ranks take parameters and state back, and
// synchronous steps measure again. A phase ends early when the mean loss of sync.every steps leaves
// its band; the next one then starts after twice the pause. See docs/switching.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/job/options.h"
#include "echelon/net/token.h"
#include "echelon/parallel/data/staleness.h"
#include "echelon/train/trainer.h"

namespace echelon {

class AsyncPhases {
 public:
  // Observes the trainer, so must outlive its runs.
  // `bind` is the numeric address that servers listen on; `say` gets every decision, on rank 0.
  // Throws InvalidArgument if the options do not allow staleness.
  AsyncPhases(const JobOptions& options, Trainer& trainer, const Stack& stack,
              std::shared_ptr<Communicator> ranks, std::string bind, const Token& token,
              std::function<void(const std::string&)> say);

  void run_until(std::int64_t until, const std::atomic<bool>* stop = nullptr);

  int phases() const { return phases_; }  // so far

 private:
  // The result of a phase, the same on all ranks.
  struct Outcome {
    double seconds = 0;  // of a step, including the cost of the switch
    double loss = 0;     // at the end
    bool in_band = true;
  };
  std::optional<StalenessCase> look();
  void phase(std::int64_t end, double cost, const std::atomic<bool>* stop);
  Outcome run_phase(std::int64_t end, const std::atomic<bool>* stop);

  JobOptions options_;
  Trainer& trainer_;
  const Stack& stack_;
  std::shared_ptr<Communicator> ranks_;
  std::string bind_;
  Token token_;
  std::function<void(const std::string&)> say_;
  GradientProbe probe_;
  NoiseHistory history_;
  std::vector<double> computing_, steps_;  // seconds, of this interval
  std::vector<double> losses_;             // of this interval
  LossBand band_;
  std::string objection_;  // the last one logged, and its step
  std::int64_t told_ = 0;
  double step_seconds_ = 0, predicted_ = 0;  // at the last look()
  double off_ = 1;                           // ratio of actual to predicted time of earlier phases
  std::int64_t not_before_ = 0, pause_ = 0;  // steps
  int intervals_ = 0, phases_ = 0;
  bool in_phase_ = false;
};

}  // namespace echelon
