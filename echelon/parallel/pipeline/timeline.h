// When each slot of a pipeline ran, simulated or measured.
#pragma once

#include <vector>

#include "echelon/parallel/pipeline/schedule.h"

namespace echelon {

struct TimedSlot {
  Slot slot;
  double begin = 0, end = 0;  // seconds since the step began
};

struct Timeline {
  std::vector<std::vector<TimedSlot>> ranks;  // by rank, in the order in which the slots ran

  double end() const;           // end of the last slot on any rank
  double busy(int rank) const;  // seconds in which the rank computes
  double idle(int rank) const;  // fraction of the step in which it does not
  // Bubble over ideal time. The ideal time is the busy time of the busiest rank, since no order of
  // slots can be faster; the rest of the step is the bubble. Stages of unequal cost leave ranks
  // idle, but create no bubble by themselves.
  double bubble() const;
};

}  // namespace echelon
