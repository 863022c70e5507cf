// The events of a running Trainer, as values on one stream.
//
//   trainer.on_event([](const Event& event) {
//     if (const auto* fault = std::get_if<FaultReport>(&event)) alarm(fault->text);
//   });
//
// Observers are called in the order in which they were added, on the thread that runs the trainer.
// They may read the model and call evaluate(), infer() and save(). The progress bar of `echelon
// train`, its metrics, its traces and its report read this stream and nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "echelon/nn/memory.h"
#include "echelon/step/executor.h"
#include "echelon/train/metric.h"

namespace echelon {

// After every step, on every rank. With parameter servers: only on the first worker.
struct StepReport {
  std::int64_t step = 0;  // 1-based: this many steps are done
  double loss = 0;        // mean over the global batch, before the update
  double grad_norm = 0;   // before clipping
  double rate = 0;
  double seconds = 0;        // since the previous step
  std::int64_t targets = 0;  // values predicted by all ranks: tokens of a language model
  StepTimes times = {};      // where this rank's time went
  // Parameter servers: the staleness of the gradients of the step's shares, in updates, and the
  // batch they were computed on, 1-based. Steps may be applied in another order than they were
  // begun.
  std::vector<std::int64_t> ages = {};
  std::int64_t batch = 0;
  double loss_scale = 0;  // fp16: the factor on this step's gradients; otherwise 0
  bool skipped = false;   // fp16: gradients were not finite, and nothing was updated
};

// Follows the StepReport of a traced step (Trainer::trace): this rank's actions and communication
// in the step, with times. The span refers to memory of the trainer's executor and is valid until
// the next step. A worker of parameter servers reports after every share of a batch that it has
// computed; `step` is then the step that it is a part of.
struct ExchangeReport {
  std::int64_t step = 0;
  std::span<const TracedAction> actions = {};
  std::vector<Exchanged> exchanges = {};  // in the order in which they were started
  std::vector<Ledger::Entry> sent = {};   // by this rank in this step, and not between steps
  // When the step waited for its batch, by the clock of the actions; equal if it did not.
  std::chrono::steady_clock::time_point data_begin = {}, data_end = {};
};

// After evaluate(), evaluate_together() and measure(), on every rank that took part.
struct ValidationReport {
  std::int64_t step = 0;  // steps done before
  double loss = 0;        // mean
  std::int64_t samples = 0;
  Scores scores = {};  // of the trainer's metrics
};

// A change in how ranks synchronise, and its reason, on the first rank: another algorithm, another
// split of the batch, or another bound on staleness.
struct DecisionReport {
  std::int64_t step = 0;
  std::string text = {};
};

// A complete state was written; on the rank that wrote it.
struct SaveReport {
  std::int64_t step = 0;
  std::filesystem::path path = {};
};

// At the end of every run() and run_until(): the peak memory of this rank's tensors so far.
struct MemoryReport {
  std::int64_t step = 0;
  MemoryUse peak = {};
};

// A fault. The job continues without a lost worker. An exception follows every other fault.
struct FaultReport {
  enum class Kind { worker_lost, not_finite };
  std::int64_t step = 0;  // steps done
  Kind kind = Kind::not_finite;
  std::string text = {};
};

using Event = std::variant<StepReport, ExchangeReport, ValidationReport, DecisionReport, SaveReport,
                           MemoryReport, FaultReport>;

}  // namespace echelon
