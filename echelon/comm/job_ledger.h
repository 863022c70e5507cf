// The ledgers of all ranks as one file, ledger.json:
//
//   {"world": 2, "sent_bytes": …,
//    "operations": [{"rank": 0, "operation": "all_reduce", "tag": "gradients",
//                    "algorithm": "shared", "link": "shared", "calls": …, "bytes": …}, …]}
#pragma once

#include <string>

namespace echelon {

class Communicator;

enum class Extent { all_ranks, this_rank };

// The ledger of all ranks. Collective; its own exchanges are not included. Without ranks (nullptr),
// the ledger of one process, which sends nothing.
std::string job_ledger(Communicator* ranks, Extent extent = Extent::all_ranks);

}  // namespace echelon
