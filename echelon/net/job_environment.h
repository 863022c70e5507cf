// Who this process is in its job: its rank, the size of the world, and where the ranks meet.
// launch/environment.h reads it from what a launcher or a scheduler has set.
#pragma once

#include <string>

#include "echelon/net/job_identity.h"

namespace echelon {

struct JobEnvironment {
  int rank = 0;
  int world = 1;
  // Rank and number of ranks on this machine. If unknown: all ranks if the rendezvous is a loopback
  // address, otherwise this rank alone.
  int local_rank = 0;
  int local_world = 1;
  std::string rendezvous;              // "host:port"; empty when world is 1
  std::string source = "one process";  // where it was read from: "torchrun", "Open MPI", "Slurm", …
  JobIdentity identity;
  // Advice, if a scheduler has allocated several tasks and this process is none of them.
  std::string not_a_rank;
};

}  // namespace echelon
