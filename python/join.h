// How the ranks of a process group of torch find each other: through the store that torch gives.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "echelon/collective/group.h"

namespace echelon::python {

// Each rank sets its peer info in the store and takes the others'. The job's token is ECHELON_TOKEN (or
// the file that ECHELON_TOKEN_FILE names) if it is set; else rank 0 makes one and puts it in the
// store, which is as open to others as it is when torch itself meets there.
//
// Options are those of the program, from ECHELON_SET="net.tls=true comm.algorithm=ring". Listeners
// bind to net.interface; else to the loopback when all ranks run on one machine; else to the
// address that leads to MASTER_ADDR.
//
// Throws Timeout naming the ranks that did not come, and whatever Endpoint and Group do.
std::shared_ptr<Group> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            std::chrono::milliseconds timeout);

}  // namespace echelon::python
