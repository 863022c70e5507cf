// The figures of the links that the chooser decides by: alpha and beta of shared memory and of TCP,
// and gamma of this processor. Measured by all ranks of a job together when it starts, in a
// fraction of a second; rank 0's numbers hold for all. Those of several hosts are kept for the next
// job over the same links (link_cache.h).
#pragma once

#include "echelon/collective/cost.h"
#include "echelon/collective/link_cache.h"

namespace echelon {

class Group;

// Collective. From the cache where it has these links and comm.measure allows it, else measured and
// put there. Links may change while a job runs: `again` measures in any case. What it exchanges is
// not the caller's traffic, and is not in the ledger.
enum class Measure { once, again };
struct Measured {
  Figures figures;
  LinkCache cache;  // where they are kept
};
Measured measure_figures(Group& group, Measure when = Measure::once);

}  // namespace echelon
