// The ledgers of all ranks as one file, ledger.json:
//
//   {"world": 2, "sent_bytes": …, "operations": [{"rank": 0, "operation": "all_reduce", "tag":
//   "gradients",
//    "algorithm": "shared", "link": "shared", "calls": …, "bytes": …}, …]}
#pragma once

#include <string>

namespace echelon {

class Communicator;

enum class Extent { all_ranks, this_rank };

// Of all ranks: collective, and what it exchanges itself is not in it. Without ranks (nullptr): of
// one process, which sends nothing.
std::string job_ledger(Communicator* ranks, Extent extent = Extent::all_ranks);

}  // namespace echelon
