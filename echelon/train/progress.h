// What a person sees while a run goes on: a bar that redraws itself on a terminal, plain lines
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "echelon/train/trainer.h"

namespace echelon {

class Progress {
 public:
  // `bytes`: the loss is also shown as bits per byte.
  Progress(std::int64_t first_step, std::int64_t steps, bool bytes);
  ~Progress();  // ends the bar's line

  void step(const StepReport& report);
  void say(const std::string& line);  // above the bar

 private:
  std::string describe(const StepReport& report) const;

  using Clock = std::chrono::steady_clock;
  std::int64_t first_, steps_;
  bool bytes_, terminal_;
  bool drawn_ = false;
  Clock::time_point shown_;
  double smooth_seconds_ = 0;  // of a step, a running mean
};

}  // namespace echelon
