// When each slot of a pipeline ran: as simulated, or as measured in a real run.
#pragma once

#include <vector>

#include "echelon/parallel/pipeline/schedule.h"

namespace echelon {

struct TimedSlot {
  Slot slot;
  double begin = 0, end = 0;  // seconds since the step began
};

struct Timeline {
  std::vector<std::vector<TimedSlot>> ranks;  // in the order in which they ran

  double end() const;           // of the last slot of all
  double busy(int rank) const;  // seconds that a rank computes
  double idle(int rank) const;  // the share of the step that it does not
  // Idle over ideal: ideal is the time of the rank that computes longest, since no order of slots
  // can be faster, and what the step takes beyond it is the bubble. Stages of unequal cost alone
  // make no bubble, but idle ranks.
  double bubble() const;
};

}  // namespace echelon
