// The figures of the links that the chooser decides by: alpha and beta of shared memory and of TCP,
// and gamma of this processor. Measured by all ranks of a job together when it starts, in a
// fraction of a second; rank 0's numbers hold for all, and are kept for the next job of the same
// topology.
#pragma once

#include "echelon/collective/cost.h"

namespace echelon {

class Group;

// Collective. From the cache (ECHELON_CACHE, else $XDG_CACHE_HOME/echelon, ~/.cache/echelon) where
// it has this topology, else measured and put there. Links may change while a job runs: `again`
// measures in any case. What it exchanges is not the caller's traffic, and is not in the ledger.
enum class Measure { once, again };
Figures measure_figures(Group& group, Measure when = Measure::once);

}  // namespace echelon
