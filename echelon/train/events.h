// What happens while a Trainer runs, as values on one stream.
//
//   trainer.on_event([](const Event& event) {
//     if (const auto* fault = std::get_if<FaultReport>(&event)) alarm(fault->text);
//   });
//
// Observers are called in the order in which they came, on the thread that runs the trainer. They
// may read the model and call evaluate(), infer() and save(). The bar of `echelon train`, its
// metrics, its traces and its report read this stream and nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "echelon/nn/memory.h"
#include "echelon/step/executor.h"

namespace echelon {

// After every step, on every rank; of the workers of parameter servers on the first.
struct StepReport {
  std::int64_t step = 0;  // 1-based: this many steps are done
  double loss = 0;        // mean over the global batch, before the update
  double grad_norm = 0;   // before clipping
  double rate = 0;
  double seconds = 0;        // since the step before
  std::int64_t targets = 0;  // values predicted, by all ranks: tokens of a language model
  StepTimes times = {};      // where this rank's time went
  // Parameter servers: how many updates old the gradients of the step's shares were, and which
  // batch they were of, 1-based; steps may be applied in another order than they were begun.
  std::vector<std::int64_t> ages = {};
  std::int64_t batch = 0;
  double loss_scale = 0;  // fp16: what this step's gradients were multiplied by; otherwise 0
  bool skipped = false;   // fp16: they were not finite, and nothing was updated
};

// After the StepReport of a step that was traced (Trainer::trace): what this rank did and exchanged
// in it, and when. The actions are those of the trainer's executor until the next step.
struct ExchangeReport {
  std::int64_t step = 0;
  std::span<const TracedAction> actions = {};
};

// After evaluate() and evaluate_together(), on every rank that took part.
struct ValidationReport {
  std::int64_t step = 0;  // steps that the model had done
  double loss = 0;        // mean
  std::int64_t samples = 0;
};

// How ranks synchronise from now on, and why, on the first of them: another algorithm, other shares
// of the batch, gradients that may be older.
struct DecisionReport {
  std::int64_t step = 0;
  std::string text = {};
};

// A state was written, whole; on the rank that wrote it.
struct SaveReport {
  std::int64_t step = 0;
  std::filesystem::path path = {};
};

// At the end of every run() and run_until(): what this rank's tensors took at most, so far.
struct MemoryReport {
  std::int64_t step = 0;
  MemoryUse peak = {};
};

// What went wrong. Of a worker that was lost the job does without; an exception follows the others.
struct FaultReport {
  enum class Kind { worker_lost, not_finite };
  std::int64_t step = 0;  // steps that are done
  Kind kind = Kind::not_finite;
  std::string text = {};
};

using Event = std::variant<StepReport, ExchangeReport, ValidationReport, DecisionReport, SaveReport,
                           MemoryReport, FaultReport>;

}  // namespace echelon
