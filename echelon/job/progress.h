// What a person sees while a run goes on: a bar that redraws itself on a terminal, plain lines
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "echelon/job/job.h"
#include "echelon/train/trainer.h"

namespace echelon {

class Progress {
 public:
  // `bytes`: the loss is also shown as bits per byte.
  Progress(std::int64_t first_step, std::int64_t steps, bool bytes, ShowProgress show);
  ~Progress();  // ends the bar's line

  void step(const StepReport& report);
  void say(const std::string& line);  // above the bar

 private:
  std::vector<std::string> numbers_of(const StepReport& report) const;

  using Clock = std::chrono::steady_clock;
  std::int64_t first_, steps_;
  bool bytes_, shown_at_all_, terminal_;
  Clock::time_point shown_;
  double smooth_seconds_ = 0;  // of a step, a running mean
};

// A bar between `count` and the numbers, in fewer than so many columns. Where there is no room for
// a bar, numbers are left out, from the second on, but for the last; on a narrow terminal there is
// none.
std::string bar_line(const std::string& count, const std::vector<std::string>& numbers, double done,
                     int columns, bool colours);

}  // namespace echelon
