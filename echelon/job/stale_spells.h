// Runs a trainer of several ranks, and lets its gradients be some updates old for a spell where
// that pays (sync.allow_staleness).
//
//   StaleSpells spells(options, trainer, stack, ranks, bind, token, say);
//   spells.run_until(until, &stop);  // in place of trainer.run_until
//
// All ranks make the same calls. Every sync.every steps they put together what they measured
// (parallel/data/staleness.h). Where the condition holds, every rank starts a parameter server, and
// the next steps run in bounded mode; then parameters and state come back, and synchronous steps
// measure again. A spell ends early when the mean loss of sync.every steps leaves its band; the
// next then comes after twice the pause. docs/switching.md
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

class StaleSpells {
 public:
  // Watches the trainer as long as that runs, so must outlive it.
  // `bind` is the numeric address that servers listen on; `say` gets every decision, on rank 0.
  // Throws InvalidArgument where the options and staleness do not go together.
  StaleSpells(const JobOptions& options, Trainer& trainer, const Stack& stack,
              std::shared_ptr<Communicator> ranks, std::string bind, const Token& token,
              std::function<void(const std::string&)> say);

  void run_until(std::int64_t until, const std::atomic<bool>* stop = nullptr);

  int spells() const { return spells_; }  // so far

 private:
  // What a spell came to, the same on all ranks.
  struct Outcome {
    double seconds = 0;  // of a step, with all that the change cost
    double loss = 0;     // where it ended
    bool in_band = true;
  };
  std::optional<StalenessCase> look();
  void spell(std::int64_t end, double cost, const std::atomic<bool>* stop);
  Outcome run_spell(std::int64_t end, const std::atomic<bool>* stop);

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
  std::string objection_;  // the last that was told, and when
  std::int64_t told_ = 0;
  double step_seconds_ = 0, predicted_ = 0;  // when things were last looked at
  double off_ = 1;                           // what spells took over what was predicted, so far
  std::int64_t not_before_ = 0, pause_ = 0;  // steps
  int intervals_ = 0, spells_ = 0;
  bool in_spell_ = false;
};

}  // namespace echelon
