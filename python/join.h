// How the ranks of a torch process group find each other: through torch's store.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "echelon/collective/group.h"

namespace echelon::python {

// Each rank writes its peer info to the store and reads the others'. The job's token comes from
// ECHELON_TOKEN or the file that ECHELON_TOKEN_FILE names. Otherwise rank 0 makes a token and puts
// it into the store, so whoever can read the store can join, as with torch's own backends.
//
// ECHELON_SET="net.tls=true comm.algorithm=ring" sets options of the program. Listeners bind to
// net.interface if it is set, to the loopback if all ranks run on one machine, and otherwise to the
// address that leads to MASTER_ADDR.
//
// Throws Timeout, which names the missing ranks, and the errors of Endpoint and Group.
std::shared_ptr<Group> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            std::chrono::milliseconds timeout);

}  // namespace echelon::python
