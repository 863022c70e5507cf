// Measures the link figures for the choice of algorithms: alpha and beta of shared memory and of
// TCP, and gamma of this processor. All ranks of a job measure together when it starts, in a
// fraction of a second; rank 0's figures are used on all ranks. Figures of several hosts are cached
// for the next job over the same links (link_cache.h).
#pragma once

#include "echelon/collective/cost.h"
#include "echelon/collective/link_cache.h"

namespace echelon {

class Group;

// Collective. Takes the figures from the cache if it has these links and comm.measure allows it,
// otherwise measures and caches them. Links may change while a job runs: `again` always measures.
// Its traffic is not counted in the ledger.
enum class Measure { once, again };
struct Measured {
  Figures figures;
  LinkCache cache;  // that holds them
};
Measured measure_figures(Group& group, Measure when = Measure::once);

}  // namespace echelon
