// Private to Trainer: the steps it has begun, and its waits between steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "echelon/step/device.h"
#include "echelon/train/trainer.h"

namespace echelon {

// Between steps, rank 0 may validate and save while the others wait. A dead rank is still noticed
// at once.
constexpr auto between_steps = std::chrono::hours(24);

// The numbers of a step, by index in Trainer::report_. Numbers before `scale_at` are written at the
// end of the step.
enum Reported : std::int64_t {
  loss_at,
  norm_at,
  skipped_at,
  halted_at,
  scale_at,
  stop_at,
  reported
};

// Steps that were issued and not yet reported. On the CPU a step is done when the call returns. On
// a GPU the inputs and the report of a step pass through its own pinned memory, which is reused
// once the event of the step has completed.
struct Trainer::InFlight {
  struct Slot {
    std::int64_t step = 0;
    double rate = 0;
    std::int64_t targets = 0;
    StepTimes times;
    Batch batch;                                         // pinned
    at::Tensor rate_value, step_value, divisor, report;  // pinned
    std::optional<c10::Event> done;
    Work vote;  // several ranks: whether any rank wants to stop
  };
  std::deque<Slot> pending;
  std::deque<Slot> free;
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
  std::optional<SideStream> stream;
  std::optional<DeviceGraph> graph;
  std::string recorded_batch;           // description of the batch that the graph reads
  std::vector<Ledger::Entry> recorded;  // what one replay of the graph sends
  int eager_steps_done = 0;
};

// While this object lives, its thread works for the trainer: its allocations count in the trainer's
// memory account, and on a GPU the trainer's stream is current. Between calls of the trainer, a
// thread is as its user left it and may work for another trainer.
class Trainer::OnThread {
 public:
  explicit OnThread(const Trainer& trainer) : counting_(*trainer.memory_) {
    if (trainer.in_flight_->stream) stream_.emplace(*trainer.in_flight_->stream);
  }

 private:
  MemoryCounting counting_;
  std::optional<SideStream::Current> stream_;
};

// The same, and requires a model that is laid out.
class Trainer::AtWork : OnThread {
 public:
  explicit AtWork(const Trainer& trainer) : OnThread(trainer) { trainer.require_laid_out(); }
};

}  // namespace echelon
