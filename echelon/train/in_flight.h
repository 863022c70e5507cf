// Trainer's own: the steps it has begun.
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

// The numbers of a step, by place in Trainer::report_; those before `scale` come after the step.
enum Reported : std::int64_t {
  loss_at,
  norm_at,
  skipped_at,
  halted_at,
  scale_at,
  stop_at,
  reported
};

// Steps that were issued and not yet reported. On the CPU a step is done when it returns; on a GPU
// its inputs and its report pass through pinned memory of its own, which is used again when its
// event has been seen.
struct Trainer::InFlight {
  struct Slot {
    std::int64_t step = 0;
    double rate = 0;
    std::int64_t targets = 0;
    at::Tensor input, target, rate_value, step_value, report;  // pinned
    std::optional<c10::Event> done;
    Work vote;  // several ranks: whether any wants to stop
  };
  std::deque<Slot> pending;
  std::deque<Slot> free;
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
  std::optional<SideStream> stream;
  std::optional<DeviceGraph> graph;
  std::vector<Ledger::Entry> recorded;  // what one replay of it sends
  int eager_steps_done = 0;
};

// While one lives, its thread works for the trainer: what it allocates is counted in the trainer's
// account, and on a GPU the trainer's stream is the current one. Between a trainer's calls a thread
// is as its user left it, and may work for another trainer.
class Trainer::OnThread {
 public:
  explicit OnThread(const Trainer& trainer) : counting_(*trainer.memory_) {
    if (trainer.in_flight_->stream) stream_.emplace(*trainer.in_flight_->stream);
  }

 private:
  MemoryCounting counting_;
  std::optional<SideStream::Current> stream_;
};

// The same, with a model that is laid out.
class Trainer::AtWork : OnThread {
 public:
  explicit AtWork(const Trainer& trainer) : OnThread(trainer) { trainer.require_laid_out(); }
};

}  // namespace echelon
