// Progress of a run: a bar that redraws itself on a terminal, otherwise plain lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "echelon/job/data.h"
#include "echelon/job/job.h"
#include "echelon/train/trainer.h"

namespace echelon {

class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t steps, const LossUnits& units, ShowProgress show);
  ~Progress();  // ends the bar's line

  bool is_bar() const { return terminal_; }
  void step(const StepReport& report);
  void say(const std::string& line);  // above the bar
  // Lines that are drawn anew together with the bar, above it, as many as fit; nothing without a
  // bar.
  void table(std::function<std::string()> lines) { table_ = std::move(lines); }
  void remove_table();  // leaves the bar alone

 private:
  std::vector<std::string> numbers_of(const StepReport& report) const;

  using Clock = std::chrono::steady_clock;
  std::int64_t first_, steps_;
  LossUnits units_;
  bool shown_at_all_, terminal_;
  std::function<std::string()> table_;
  std::string bar_;  // as it was drawn last
  Clock::time_point shown_;
  double smooth_seconds_ = 0;  // of a step, a running mean
};

// A line with `count`, a bar and the numbers, shorter than `columns`. If the bar does not fit,
// numbers are dropped from the second on, except for the last; on a narrow terminal there is no
// bar.
std::string bar_line(const std::string& count, const std::vector<std::string>& numbers, double done,
                     int columns, bool colours);

}  // namespace echelon
